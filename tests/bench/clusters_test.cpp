#include "ditrain/bench/clusters.hpp"

#include <catch2/catch.hpp>
#include <thread>

#include "ditrain/base/error.hpp"
#include "ditrain/files/json.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using namespace ditrain::bench;

namespace {

ClustersBench tiny() {
  return {.model = "custom",
          .batch = 4,
          .sets = {"model.hidden_size=32", "model.depth=2", "model.num_heads=2", "model.patch_size=8"}};
}

}  // namespace

TEST_CASE("clusters: one core, samples and columns in turns") {
  Harness harness(2, Effort::quick(), 2);
  bench_clusters(harness, tiny());
  const auto j = files::parse_json(to_json(harness.report()));
  const auto& rows = j.at("rows");
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].at("name") == "step custom one core");
  CHECK((rows[0].at("threads") == 1 && rows[0].at("clusters") == 1 && rows[0].at("efficiency") == 1.0));
  for (const size_t i : {1, 2}) {
    CAPTURE(files::json_text(rows[i]));
    CHECK((rows[i].at("threads") == 2 && rows[i].at("clusters") == 2));
    double sum = 0;
    for (const char* part : {"products_s", "attention_s", "elementwise_s", "optimizer_s", "waiting_s", "other_s"})
      sum += rows[i].at(part).get<double>();
    CHECK(sum == Approx(rows[i].at("median_s").get<double>()));
    CHECK(rows[i].at("products_s") > 0.0);
    CHECK(rows[i].at("other_s") > 0.0);
    const double efficiency = rows[i].at("efficiency");
    CHECK(efficiency == Approx(rows[0].at("median_s").get<double>() / (2 * rows[i].at("median_s").get<double>())));
  }
  CHECK((rows[1].at("cut") == "samples" && rows[2].at("cut") == "n"));
  // The workers of a cluster are one each: only the team meets; with samples not within the forward pass of a block.
  CHECK(rows[1].at("team_barriers_per_block").get<double>() < rows[2].at("team_barriers_per_block").get<double>());
  CHECK(rows[1].at("cluster_barriers_per_block") == 0.0);
  if (std::thread::hardware_concurrency() < 2) SKIP("one core is all there is");
  for (const std::string& note : harness.report().notes) CHECK_THAT(note, !Catch::Contains("workers are not pinned"));
}

TEST_CASE("clusters: there have to be several") {
  Harness harness(2, Effort::quick(), 1);
  CHECK_THROWS_AS(bench_clusters(harness, tiny()), InputError);
}
