#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/dataset/kinds.hpp"

using namespace ditrain;
using namespace ditrain::dataset;
using Catch::Contains;

namespace {
Config config_of(const std::string& kind, const std::string& path = "") {
  Config config;
  config.kind = find_kind(kind);
  config.path = path;
  return config;
}
}  // namespace

TEST_CASE("the registry lists its kinds and opens the default one") {
  CHECK(all_words<const DataKind*>() == std::vector<std::string>{"shapes", "folder", "latents", "tiles"});
  CHECK(help_of_kinds() ==
        "shapes: drawn, needs no files; folder: images; latents: safetensors shards; "
        "tiles: scenes of any number of bands, cut by ditdata make");
  const auto data = open_dataset({}, {3, 32, 32}, 8, 1);
  CHECK(data->size() == 50000);
  CHECK(data->num_classes() == 8);
  CHECK_THAT(data->describe(), Contains("shapes"));
}

TEST_CASE("an unset path says which line to set") {
  for (const char* kind : {"folder", "latents"})
    CHECK_THROWS_WITH(open_dataset(config_of(kind), {}, 0, 1),
                      Contains("data: {path: DIR}") && Contains("--set data.path=DIR"));
}

TEST_CASE("a missing path is named") {
  for (const char* kind : {"folder", "latents"})
    CHECK_THROWS_WITH(open_dataset(config_of(kind, "/nonexistent/data"), {}, 0, 1), Contains("/nonexistent/data"));
}

TEST_CASE("values out of range are refused") {
  Config config;
  config.latent_scale = 0;
  CHECK_THROWS_WITH(open_dataset(config, {}, 0, 1), Contains("latent_scale"));
  config = {};
  config.num_images = 0;
  CHECK_THROWS_WITH(open_dataset(config, {}, 0, 1), Contains("num_images"));
  CHECK_THROWS_AS(open_dataset({}, {3, 0, 32}, 0, 1), ShapeError);
  CHECK_THROWS_AS(open_dataset({}, {3, 32, int64_t{1} << 40}, 0, 1), ShapeError);
}

TEST_CASE("more classes than the model has is an error, and fewer or no labels wanted is not") {
  CHECK_THROWS_WITH(open_dataset({}, {3, 32, 32}, 7, 1),
                    Contains("label out of range") && Contains("model.num_classes: 8"));
  CHECK_NOTHROW(open_dataset({}, {3, 32, 32}, 8, 1));
  CHECK_NOTHROW(open_dataset({}, {3, 32, 32}, 1000, 1));
  CHECK_NOTHROW(open_dataset({}, {3, 32, 32}, 0, 1));
}
