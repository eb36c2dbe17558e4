#include "ditrain/bench/data.hpp"

#include <catch2/catch.hpp>

#include "ditrain/files/json.hpp"

using namespace ditrain;
using namespace ditrain::bench;
using Json = nlohmann::json;

TEST_CASE("data: the loader beside the steps that it feeds, for tiles and for photographs") {
  Harness harness(2, Effort::quick());
  DataBench bench{.samples = 4, .large_tile = 32, .small_tile = 16, .photo_width = 50, .photo_height = 37};
  bench.step = {.model = "custom",
                .sets = {"model.hidden_size=32", "model.depth=2", "model.num_heads=2", "model.patch_size=8"}};
  bench.batch = 2, bench.photo_size = 32;
  bench_data(harness, bench);
  const Json rows = files::parse_json<Json>(to_json(harness.report())).at("rows");
  REQUIRE(rows.size() == 7);
  CHECK(rows[0].at("name") == "step custom");
  const double alone = rows[0].at("images_per_second");
  const std::vector<std::string> names = {"tiles 13x32x32 u16", "tiles 13x16x16 u16", "JPEG 50x37 to 32x32"};
  for (size_t i = 0; i < names.size(); ++i) {
    const Json &loader = rows[1 + 2 * i], &step = rows[2 + 2 * i];
    CHECK(loader.at("name") == "loader " + names[i]);
    CHECK(loader.at("images_per_second").get<double>() == Approx(1 / loader.at("median_s").get<double>()));
    CHECK(loader.at("times_step").get<double>() == Approx(loader.at("images_per_second").get<double>() / alone));
    CHECK(step.at("name") == "step with " + names[i]);
    CHECK(step.at("data_wait_s").get<double>() >= 0);
    CHECK(step.at("data_wait_share").get<double>() ==
          Approx(step.at("data_wait_s").get<double>() / step.at("median_s").get<double>()));
  }
}
