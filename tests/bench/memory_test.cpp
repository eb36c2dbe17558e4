#include "ditrain/bench/memory.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "ditrain/base/error.hpp"

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
  const auto rows = nlohmann::json::parse(to_json(harness.report())).at("rows");
  REQUIRE(rows.size() == 6 + 4 + 3);
  for (const auto& row : rows) CHECK(row.at("median_s").get<double>() > 0);
  const char* pages[] = {"plain", "transparent", "explicit"};
  for (size_t i = 0; i < 6; ++i) {
    const std::string had = rows[i].at("pages");
    CHECK((had == pages[i % 3] || had == std::string("not ") + pages[i % 3]));
    CHECK(rows[i].at("speed_to_plain").get<double>() > 0);
    if (i % 3 == 0) CHECK(rows[i].at("speed_to_plain") == 1);
  }
  for (size_t i = 6; i < 10; ++i) {
    CHECK(rows[i].at("gb_s").get<double>() > 0);
    CHECK(rows[i].at("latency_s").get<double>() > 0);
  }
  const char* strategies[] = {"off", "paper", "planned"};
  for (size_t i = 10; i < 13; ++i) {
    CAPTURE(rows[i].dump());
    CHECK(rows[i].at("automem") == strategies[i - 10]);
    CHECK(rows[i].at("step_ratio").get<double>() > 0);
    CHECK(rows[i].at("fast_share") == (i == 10 ? 1.0 : 0.6));
    if (i == 10) continue;
    CHECK(rows[i].at("fast_peak_bytes").get<double>() <= rows[i].at("fast_gib").get<double>() * 0x1p30);
    CHECK(rows[i].at("predicted_s").get<double>() > 0);
    CHECK(rows[i].at("in_bytes").get<double>() + rows[i].at("out_bytes").get<double>() > 0);
  }
}

TEST_CASE("memory: a fast tier that is too small for any node is refused") {
  Harness harness(1, Effort::quick());
  MemoryBench bench = tiny();
  bench.fast_shares = {0.01};
  CHECK_THROWS_WITH(bench_memory(harness, bench), Catch::Contains("the fast tier is too small for"));
}
