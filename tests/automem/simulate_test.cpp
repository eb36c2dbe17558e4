// Simulated steps: their copies and their time.
#include "ditrain/automem/simulate.hpp"

#include <catch2/catch.hpp>

#include "automem/layered.hpp"

using namespace ditrain;
using namespace ditrain::automem;
using memory::CopyBy;

namespace {

struct Disk final : memory::Backing {
  std::string name() const override { return "disk"; }
  size_t bytes() const override { return SIZE_MAX; }
  void read(size_t, std::byte*, size_t) override {}
  void write(size_t, const std::byte*, size_t) override {}
};

memory::PerTier<memory::TierRates> all_tiers(const memory::TierRates& rates) {
  memory::PerTier<memory::TierRates> tiers;
  tiers.fill(rates);
  return tiers;
}

}  // namespace

TEST_CASE("a simulated step: no copies where all fits, and the time of the link where little does") {
  const Uses uses = layered(8);
  Machine machine{.tiers = all_tiers({.in_bytes_s = 1e9, .out_bytes_s = 1e9}),
                  .point_s = std::vector<double>(uses.points.size(), 1e-3)};
  Residency::Setup setup{.backing_slots = std::vector<BackingSlot>(uses.tensors.size()),
                         .pool_bytes = uses.total_bytes()};
  const double all_s = 1e-3 * double(uses.points.size());
  const Forecast roomy = simulate(uses, setup, machine);
  CHECK(roomy.step_s == Approx(all_s));
  CHECK(roomy.bytes_in == 0);
  CHECK(roomy.bytes_out == 0);
  setup.pool_bytes = uses.total_bytes() * 2 / 5 / memory::kBlock * memory::kBlock;
  const Forecast small = simulate(uses, setup, machine);
  CHECK(small.bytes_in > 0);
  CHECK(small.peak_bytes <= setup.pool_bytes);
  CHECK(small.step_s < 1.1 * all_s);  // the link is fast enough to hide behind the points
  machine.tiers = all_tiers({.in_bytes_s = 2e7, .out_bytes_s = 2e7});
  const Forecast slow = simulate(uses, setup, machine);
  CHECK(slow.step_s > 1.5 * all_s);
  CHECK(slow.step_s >= 0.999 * slow.bytes_in / machine.tiers[0].in_bytes_s);
  setup.strategy = Strategy::kPaper;
  const Forecast paper = simulate(uses, setup, machine);
  CHECK(paper.bytes_out > slow.bytes_out);  // it writes back what has not changed
  CHECK(paper.stall_s > slow.stall_s);
}

// A disk, whose copies come ahead, beside bulk memory, whose copies workers bring when they wait: the room that is made
// for a tensor of the latter is not given to what comes ahead, over and over again.
TEST_CASE("a step ends in which what comes ahead would fill the room for what workers bring") {
  const auto bulk = memory::make_bulk_memory({.bytes = memory::kBlock});
  Disk disk;
  Uses uses;
  uses.tensors = {{"activation", kTensor, Written::kInForward},
                  {"weight", 3 * kTensor, Written::kInUpdates},
                  {"moment", 4 * kTensor, Written::kInUpdates}};
  uses.points = {{Phase::kForward, "0", {0, 1}}, {Phase::kUpdate, "0", {0, 2}}};
  const Machine machine{.tiers = all_tiers({.in_bytes_s = 1e9, .out_bytes_s = 1e9}),
                        .copy_by = CopyBy::kWorkers,
                        .point_s = {1e-3, 1e-3}};
  const Forecast step = simulate(
      uses, {.backing_slots = {{bulk.get(), 0}, {&disk, 0}, {bulk.get(), 0}}, .pool_bytes = 6 * kTensor}, machine);
  CHECK(step.bytes_in >= 7 * kTensor);  // weight and moment come in each step: the pool has no room for both
  CHECK(step.peak_bytes <= 6 * kTensor);
}

TEST_CASE("a simulated step in which workers copy: nothing comes while they compute, but from a disk") {
  const Uses uses = layered(8);
  const auto bulk = memory::make_bulk_memory({.bytes = memory::kBlock});
  Disk disk;
  Machine machine{.tiers = all_tiers({.in_bytes_s = 2e9, .out_bytes_s = 1e9}),
                  .point_s = std::vector<double>(uses.points.size(), 1e-3)};
  const auto simulated = [&](memory::Backing& tier, CopyBy by, Strategy strategy) {
    machine.copy_by = by;
    return simulate(uses,
                    {.strategy = strategy,
                     .backing_slots = std::vector<BackingSlot>(uses.tensors.size(), {&tier, 0}),
                     .pool_bytes = uses.total_bytes() * 2 / 5 / memory::kBlock * memory::kBlock},
                    machine);
  };
  const double all_s = 1e-3 * double(uses.points.size());
  for (const Strategy strategy : {Strategy::kPaper, Strategy::kPlanned}) {
    const Forecast step = simulated(*bulk, CopyBy::kWorkers, strategy);
    CHECK(step.bytes_in > 0);
    CHECK(step.stall_s ==
          Approx(step.bytes_in / machine.tiers[0].in_bytes_s + step.bytes_out / machine.tiers[0].out_bytes_s));
    CHECK(step.step_s == Approx(all_s + step.stall_s));
    CHECK(simulated(disk, CopyBy::kWorkers, strategy).step_s == simulated(disk, CopyBy::kThreads, strategy).step_s);
  }
  CHECK(simulated(*bulk, CopyBy::kThreads, Strategy::kPlanned).stall_s <
        simulated(*bulk, CopyBy::kWorkers, Strategy::kPlanned).stall_s);
}
