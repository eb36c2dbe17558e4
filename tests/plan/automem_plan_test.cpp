// The plan of memory.automem as a part of the plan of a run.
#include <catch2/catch.hpp>

#include "ditrain/plan/run_plan.hpp"

using namespace ditrain;

namespace {

config::Config tiers_with(const std::string& more) {
  return config::parse_config(
      "model: {name: custom, hidden_size: 128, num_heads: 4, depth: 4, input_size: 16, patch_size: 2, num_classes: 8}\n"
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

TEST_CASE("a plan of tensors that move touches no memory of theirs, whatever the model") {
  for (const char* model : {"metadata: [month, longitude]", "qk_norm: rms, position: rope, norm: rms, mlp: swiglu",
                            "patch_overlap: 1", "kind: uvit, learn_sigma: false", "learn_sigma: true"}) {
    CAPTURE(model);
    const config::Config config = config::parse_config(
        std::string("model: {name: custom, hidden_size: 128, num_heads: 4, depth: 5, input_size: 16, patch_size: 2, "
                    "num_classes: 8, ") +
            model + "}\ntrain: {global_batch: 32}\ndata: {kind: tiles, path: none}\n" +
            "memory: {automem: planned, fast_gib: 0.03}\n",
        "test.yaml");
    CHECK(plan::plan_run(config, 1).automem);
  }
}

TEST_CASE("a plan expects what the chosen way of copying takes, and tells why it was chosen") {
  config::Config config = tiers_with("");
  config.memory.simulate_bulk = memory::SimulatedBulk{.gb_s = 2};
  config.memory.automem = config::AutoMem::kPaper;  // nothing is used in place
  plan::RankPlace place;
  const plan::RunPlan threads = plan::plan_run(config, 1, place);
  CHECK(describe_copying(*threads.automem).empty());
  constexpr size_t kBulk = memory::tier("bulk"), kDisk = memory::tier("disk");
  place.copying = {.by = memory::CopyBy::kWorkers, .why = "measured: ..."};
  place.copying.rates[kBulk] = {.in_bytes_s = 9e9, .out_bytes_s = 8e9};
  const automem::Plan workers = *plan::plan_run(config, 1, place).automem;
  CHECK(workers.machine.tiers[kBulk].in_bytes_s == 2e9);  // of the link
  CHECK(workers.machine.in_place_bytes_s == 2e9);
  CHECK(workers.machine.tiers[kDisk].in_bytes_s == memory::kTiers[kDisk].bytes_s);
  CHECK(workers.forecast.step_s > threads.automem->forecast.step_s);
  CHECK_THAT(describe(workers), Catch::Contains("automem: copies in memory by the workers, at the borders of nodes "
                                                "(measured: ...)\n"));
  config.memory.simulate_bulk.reset();
  place.copying.in_place_bytes_s = 7e9;
  place.copying.rates[kDisk] = {.in_bytes_s = 2e8, .out_bytes_s = 1e8};
  const automem::Machine machine = plan::plan_run(config, 1, place).automem->machine;
  CHECK(machine.tiers[kBulk].in_bytes_s == 9e9);
  CHECK(machine.tiers[kBulk].out_bytes_s == 8e9);
  CHECK(machine.tiers[kDisk].out_bytes_s == 1e8);
  CHECK(machine.in_place_bytes_s == 7e9);
}

TEST_CASE("a slow node costs what reading from it takes longer") {
  CHECK(automem::extra_of_slow_node(400e9, 100e9) == Approx(400e9 / 3));
  CHECK(automem::extra_of_slow_node(100e9, 100e9) == 0);
  CHECK(automem::extra_of_slow_node(90e9, 100e9) == 0);
  CHECK(automem::extra_of_slow_node(0, 0) == 0);
}

TEST_CASE("who copies is measured only where there is a choice") {
  using config::Copy;
  config::Config config = tiers_with("");
  plan::Placement placement;
  parallel::Team team({.num_workers = 1});
  const auto copying = [&](parallel::Team* with) { return plan::plan_copying(config, placement, {}, "", with); };
  CHECK_THAT(copying(&team).why, Catch::StartsWith("measured: "));
  CHECK_THAT(copying(nullptr).why, Catch::Equals("a run measures whether the workers are faster"));
  config.memory.copy = Copy::kWorkers;
  CHECK_THAT(copying(&team).why, Catch::Equals("memory.copy: workers"));
  CHECK(copying(&team).by == memory::CopyBy::kWorkers);
  config.memory.copy = Copy::kThreads;
  CHECK_THAT(copying(&team).why, Catch::Equals("memory.copy: threads"));
  config.memory.copy = Copy::kAuto;
  placement.copy_pus = {3};  // a core of its own
  CHECK(copying(&team).why.empty());
  placement.copy_pus.clear();
  config.memory.tier_gib[memory::tier("bulk")] = 0.0, config.memory.tier_gib[memory::tier("disk")] = 1.0;
  const automem::Copying disk = copying(&team);
  CHECK(disk.why.empty());
  CHECK(disk.rates[memory::tier("disk")].in_bytes_s > 1e6);
  CHECK(disk.rates[memory::tier("bulk")].in_bytes_s == 0);
  CHECK(copying(nullptr).rates[memory::tier("disk")].in_bytes_s == 0);
}

TEST_CASE("the bytes of a plan are known without its forecast") {
  const config::Config config = tiers_with("");
  CHECK(plan::planned_memory(config, 1, {}).total() == plan::plan_run(config, 1).memory.total());
  const config::Config free = tiers_with(", recompute: auto");
  const config::Config none = tiers_with(", recompute: none");  // all degrees fit: the lowest is counted
  CHECK(plan::planned_memory(free, 1, {}).total() == plan::planned_memory(none, 1, {}).total());
}
