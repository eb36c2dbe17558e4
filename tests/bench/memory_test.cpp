#include "ditrain/bench/memory.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/files/json.hpp"

using namespace ditrain;
using namespace ditrain::bench;

namespace {

// Large enough for tensors that move.
MemoryBench tiny() {
  return {.model = "custom",
          .batch = 2,
          .fast_shares = {0.6},
          .sets = {"model.hidden_size=128", "model.depth=2", "model.num_heads=4", "model.patch_size=2"},
          .once = true};
}

}  // namespace

TEST_CASE("memory: tiers and strategies, with the fields of the contract") {
  Harness harness(2, Effort::quick());
  MemoryBench bench = tiny();
  bench.sets.push_back("memory.disk_gib=1");
  bench_memory(harness, bench);
  const auto rows = files::parse_json(to_json(harness.report())).at("rows");
  REQUIRE(rows.size() == 6 + 3);
  for (const auto& row : rows) CHECK(row.at("median_s").get<double>() > 0);
  const char* tiers[] = {"read from fast", "write to fast", "out to bulk",
                         "in from bulk",   "out to disk",   "in from disk"};
  for (size_t i = 0; i < 6; ++i) {
    CHECK(rows[i].at("name") == tiers[i]);
    CHECK(rows[i].at("gb_s").get<double>() > 0);
    if (i != 1) CHECK(rows[i].at("latency_s").get<double>() > 0);
  }
  const char* strategies[] = {"off", "paper", "planned"};
  for (size_t i = 6; i < 9; ++i) {
    CAPTURE(files::json_text(rows[i]));
    CHECK(rows[i].at("automem") == strategies[i - 6]);
    CHECK(rows[i].at("step_ratio").get<double>() > 0);
    CHECK(rows[i].at("fast_share") == (i == 6 ? 1.0 : 0.6));
    if (i == 6) continue;
    CHECK(rows[i].at("fast_peak_bytes").get<double>() <= rows[i].at("fast_gib").get<double>() * 0x1p30);
    CHECK(rows[i].at("fast_peak_bytes") < rows[6].at("fast_peak_bytes"));
    CHECK(rows[i].at("stall_share").get<double>() >= 0);
    CHECK(rows[i].at("stall_share").get<double>() <= 1);
    CHECK(rows[i].at("predicted_s").get<double>() > 0);
    CHECK(rows[i].at("in_bytes").get<double>() + rows[i].at("out_bytes").get<double>() > 0);
  }
}

// On nodes that are not there the system says where it was asked to put them.
TEST_CASE("memory: both sides of the copies lie on the nodes of a run") {
  Harness harness(2, Effort::quick());
  const TemporaryFolder folder;
  const plan::RankPlace place{.cluster_sizes = {2}, .fast_nodes = {998}, .bulk_nodes = {999}};
  bench_tiers(harness, config::MemoryConfig{}, place, folder.path());
  const Report& report = harness.report();
  CHECK(report.rows.size() == 6);
  const auto tells = [&](const std::string& words) {
    return std::any_of(report.notes.begin(), report.notes.end(),
                       [&](const std::string& note) { return note.find(words) != std::string::npos; });
  };
  for (const char* words : {"NUMA node(s) 998", "NUMA node(s) 999", "fast tier: ", "bulk tier: "}) {
    CAPTURE(words);
    CHECK(tells(words));
  }
  CHECK(tells("disk tier: " + folder.path()));
}

TEST_CASE("memory: a fast tier that is too small for any node is refused") {
  Harness harness(1, Effort::quick());
  MemoryBench bench = tiny();
  bench.fast_shares = {0.01};
  CHECK_THROWS_WITH(bench_memory(harness, bench), Catch::Contains("the fast tier is too small for"));
}

TEST_CASE("memory: without a fast tier to train in there are rows of tiers alone") {
  Harness harness(1, Effort::quick());
  MemoryBench bench = tiny();
  bench.fast_shares = {};
  bench_memory(harness, bench);
  CHECK(harness.report().rows.size() == 6);
}
