// Who copies between tiers in memory: what is measured, and what follows from it.
#include "ditrain/automem/copying.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "ditrain/base/error.hpp"

using namespace ditrain;
using namespace ditrain::automem;

TEST_CASE("both ways of copying are measured, and none is faster than the computing alone") {
  parallel::Team team({.num_workers = 2});
  const CopyTrial trial = measure_copying(team, {});
  CHECK(trial.bytes > 0);
  for (const memory::TierRates& rates : {trial.by_threads, trial.by_workers}) {
    CHECK(rates.in_bytes_s > 1e6);
    CHECK(rates.out_bytes_s > 1e6);
    CHECK(rates.in_bytes_s < 1e12);
  }
  CHECK(trial.compute_s > 0);
  CHECK(trial.workers_s > 0.5 * trial.compute_s);  // other programs may have been there
  CHECK(trial.threads_s > 0.5 * trial.compute_s);
}

TEST_CASE("a slow link is part of both measurements") {
  parallel::Team team({.num_workers = 2});
  const CopyTrial trial = measure_copying(team, {.simulate = memory::SimulatedBulk{.gb_s = 0.5}});
  const double link_s = double(trial.bytes) / 2 / 0.5e9;  // of each direction
  CHECK(trial.threads_s >= link_s);
  CHECK(trial.workers_s >= link_s);
  CHECK(trial.by_workers.in_bytes_s <= 1.001e9);
  CHECK(trial.by_threads.in_bytes_s <= 0.501e9);
  CHECK(trial.by_threads.out_bytes_s <= 0.501e9);
}

TEST_CASE("the faster way is taken, and both figures are told") {
  CopyTrial trial{.bytes = 8 << 20, .compute_s = 4e-3, .threads_s = 6e-3, .workers_s = 5.5e-3};
  trial.by_workers = {.in_bytes_s = 5e9, .out_bytes_s = 6e9},
  trial.by_threads = {.in_bytes_s = 1e9, .out_bytes_s = 2e9};
  constexpr size_t kBulk = memory::tier("bulk");
  const Copying workers = choose_copying(trial);
  CHECK(workers.by == memory::CopyBy::kWorkers);
  CHECK(workers.rates[kBulk].out_bytes_s == 6e9);
  CHECK(workers.why ==
        "measured: 4.0 ms of computing and copies of 8.0 MiB take 5.5 ms by workers at the borders of nodes, 6.0 ms by "
        "threads on the same cores");
  trial.workers_s = 6.1e-3;
  CHECK(choose_copying(trial).by == memory::CopyBy::kThreads);
  CHECK(choose_copying(trial).rates[kBulk].in_bytes_s == 1e9);
  CHECK(copying_by(memory::CopyBy::kWorkers, "", trial).rates[kBulk].in_bytes_s == 5e9);
}

TEST_CASE("the rates of a tier are those of its copies, and what fails there is told") {
  struct Slow final : memory::Backing {
    bool fails = false;
    std::string name() const override { return "slow"; }
    size_t bytes() const override { return size_t{1} << 20; }
    void read(size_t, std::byte*, size_t) override { pass(20); }
    void write(size_t, const std::byte*, size_t) override { pass(10); }
    void pass(int ms) const {
      if (fails) throw RunError({.where = "slow", .what = "broken"});
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    }
  } slow;
  constexpr size_t kDisk = memory::tier("disk");
  const memory::TierRates rates = measure_tier(slow, kDisk, size_t{1} << 20, {});
  CHECK(rates.in_bytes_s <= 0x1p20 / 0.020);
  CHECK(rates.out_bytes_s <= 0x1p20 / 0.010);
  CHECK(rates.out_bytes_s > rates.in_bytes_s);
  slow.fails = true;
  CHECK_THROWS_WITH(measure_tier(slow, kDisk, size_t{1} << 20, {}), Catch::Contains("broken"));
}
