// The plan of memory.automem as a part of the plan of a run.
#include <catch2/catch.hpp>

#include "ditrain/plan/run_plan.hpp"

using namespace ditrain;

namespace {

config::Config tiers_with(const std::string& more) {
  return config::parse_config(
      "model: {name: custom, hidden_size: 128, num_heads: 4, depth: 4, input_size: 16, patch_size: 2}\n"
      "train: {global_batch: 8, micro_batch: 4" +
          more + "}\nmemory: {automem: planned, fast_gib: 0.02}\n",
      "test.yaml");
}

}  // namespace

TEST_CASE("plans of one config expect the same time, so that degrees of recomputation can be compared") {
  const std::string recompute = GENERATE("", ", recompute: auto");
  const config::Config config = tiers_with(recompute);
  const plan::RunPlan once = plan::plan_run(config, 1), again = plan::plan_run(config, 1);
  REQUIRE(once.automem);
  CHECK(once.automem->forecast.step_s > 0);
  CHECK(once.automem->forecast.step_s == again.automem->forecast.step_s);
  CHECK(once.config.train.recompute_of_blocks == again.config.train.recompute_of_blocks);
  CHECK(once.memory.total() == again.memory.total());
}

TEST_CASE("the bytes of a plan are known without its forecast") {
  const config::Config config = tiers_with("");
  CHECK(plan::planned_bytes(config, 1, {}) == plan::plan_run(config, 1).memory.total());
  const config::Config free = tiers_with(", recompute: auto");
  const config::Config none = tiers_with(", recompute: none");  // all degrees fit: the lowest is counted
  CHECK(plan::planned_bytes(free, 1, {}) == plan::planned_bytes(none, 1, {}));
}
