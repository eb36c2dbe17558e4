#include <catch2/catch.hpp>

#include "dataset_fixture.hpp"
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

TEST_CASE("parts of the data: each sample is held out or trained on, whatever the order") {
  Config config;
  config.num_images = 200;
  const auto all = open_dataset(config, {3, 8, 8}, 8, 1);
  CHECK(all->describe_part().empty());
  config.hold_out = 0.25;
  const auto training = open_dataset(config, {3, 8, 8}, 8, 1);
  const auto held_out = open_dataset(config, {3, 8, 8}, 8, 1, Part::kHeldOut);
  CHECK(training->size() + held_out->size() == 200);
  CHECK(held_out->size() == Approx(50).margin(20));
  CHECK_THAT(training->describe_part(), Contains(std::to_string(training->size()) + " of them are for training"));
  CHECK(training->samples_checksum() != held_out->samples_checksum());
  for (int64_t i = 0; i < held_out->size(); ++i) CHECK(held_out->label(i) == load(*held_out, i).label);
  int64_t in_training = 0, in_held_out = 0;
  for (int64_t i = 0; i < 200; ++i) {
    const Sample sample = load(*all, i);
    if (in_training < training->size() && load(*training, in_training) == sample)
      ++in_training;
    else if (in_held_out < held_out->size() && load(*held_out, in_held_out) == sample)
      ++in_held_out;
  }
  CHECK(in_training == training->size());
  CHECK(in_held_out == held_out->size());
  config.hold_out = 0;
  CHECK_THROWS_WITH(open_dataset(config, {3, 8, 8}, 8, 1, Part::kHeldOut),
                    Contains("no sample is held out") && Contains("data.hold_out: 0.2"));
  config.hold_out = 0.9999, config.num_images = 3;
  CHECK_THROWS_WITH(open_dataset(config, {3, 8, 8}, 8, 1), Contains("all samples are held out"));
}
