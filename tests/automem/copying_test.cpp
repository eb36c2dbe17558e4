// Who copies between tiers in memory: what is measured, and what follows from it.
#include "ditrain/automem/copying.hpp"

#include <catch2/catch.hpp>

using namespace ditrain;
using namespace ditrain::automem;

TEST_CASE("both ways of copying are measured, and none is faster than the computing alone") {
  parallel::Team team({.num_workers = 2});
  const CopyTrial trial = measure_copying(team, {}, {});
  CHECK(trial.bytes > 0);
  CHECK(trial.bytes_s > 0);
  CHECK(trial.compute_s > 0);
  CHECK(trial.workers_s > 0.5 * trial.compute_s);  // other programs may have been there
  CHECK(trial.threads_s > 0.5 * trial.compute_s);
}

TEST_CASE("a slow link is part of both measurements") {
  parallel::Team team({.num_workers = 2});
  const CopyTrial trial = measure_copying(team, {}, memory::SimulatedBulk{.gb_s = 0.5});
  const double link_s = double(trial.bytes) / 2 / 0.5e9;  // of each direction
  CHECK(trial.threads_s >= link_s);
  CHECK(trial.workers_s >= link_s);
  CHECK(trial.bytes_s <= 1.001e9);
}

TEST_CASE("the faster way is taken, and both figures are told") {
  CopyTrial trial{.bytes = 8 << 20, .compute_s = 4e-3, .threads_s = 6e-3, .workers_s = 5.5e-3, .bytes_s = 5e9};
  const Copying workers = choose_copying(trial);
  CHECK(workers.by == memory::CopyBy::kWorkers);
  CHECK(workers.bytes_s == 5e9);
  CHECK(workers.why ==
        "measured: 4.0 ms of computing and copies of 8.0 MiB take 5.5 ms by workers at the borders of nodes, 6.0 ms by "
        "threads on the same cores");
  trial.workers_s = 6.1e-3;
  CHECK(choose_copying(trial).by == memory::CopyBy::kThreads);
}
