#include "ditrain/parallel/team.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <numeric>
#include <set>
#include <stdexcept>

#include "ditrain/base/error.hpp"
#include "ditrain/parallel/partition.hpp"
#include "ditrain/platform/affinity.hpp"
#include "support/threads.hpp"

using namespace ditrain;
using namespace ditrain::parallel;
using test::others_sleep;

TEST_CASE("every worker runs once and knows who it is") {
  const int num_workers = GENERATE(1, 2, 3, 8);
  const int num_clusters = GENERATE(1, 2, 3);
  if (num_clusters > num_workers) return;
  Team team({.num_workers = num_workers, .num_clusters = num_clusters});
  CHECK(team.num_workers() == num_workers);
  CHECK(team.num_clusters() == num_clusters);
  std::vector<Worker> seen(size_t(num_workers), Worker{.worker = -1});
  std::vector<std::thread::id> ids(static_cast<size_t>(num_workers));
  team.run([&](const Worker& w) { seen[size_t(w.worker)] = w, ids[size_t(w.worker)] = std::this_thread::get_id(); });
  CHECK(ids[0] == std::this_thread::get_id());
  CHECK(std::set<std::thread::id>(ids.begin(), ids.end()).size() == size_t(num_workers));
  for (int i = 0; i < num_workers; ++i) {
    const Worker& w = seen[size_t(i)];
    CHECK(w.worker == i);
    CHECK(w.num_workers == num_workers);
    CHECK(w.num_clusters == num_clusters);
    const Range cluster = partition(num_workers, w.cluster, num_clusters);
    CHECK((cluster.begin <= i && i < cluster.end));
    CHECK(w.worker_in_cluster == i - cluster.begin);
    CHECK(w.workers_in_cluster == cluster.size());
  }
}

TEST_CASE("thousands of runs: plain variables written by one worker are read by the next phase") {
  const int num_workers = GENERATE(1, 2, 3, 8);
  const int spin_pauses = GENERATE(int{Team::kAuto}, 0, 50);
  Team team({.num_workers = num_workers, .spin_pauses = spin_pauses});
  std::vector<int64_t> cells(size_t(num_workers), 0);
  constexpr int kRuns = 2000;
  int64_t expected = 0, wrong = 0;
  for (int run = 0; run < kRuns; ++run) {
    team.run([&](const Worker& w) { cells[size_t(w.worker)] += run + w.worker; });
    expected += int64_t(run) * num_workers + int64_t(num_workers) * (num_workers - 1) / 2;
    wrong += std::accumulate(cells.begin(), cells.end(), int64_t{0}) != expected;
  }
  CHECK(wrong == 0);
}

TEST_CASE("barriers order phases: everyone reads what its neighbour wrote before") {
  const int num_workers = GENERATE(1, 2, 3, 8);
  const int spin_pauses = GENERATE(int{Team::kAuto}, 0);
  Team team({.num_workers = num_workers, .spin_pauses = spin_pauses});
  std::vector<int> phase_of(size_t(num_workers), 0);
  std::atomic<int> wrong{0};
  for (int run = 0; run < 30; ++run)
    team.run([&](const Worker& w) {
      for (int phase = 1; phase <= 40; ++phase) {
        phase_of[size_t(w.worker)] = phase;
        team.barrier(w);
        for (const int other : phase_of) wrong += other != phase;
        team.barrier(w);
      }
    });
  CHECK(wrong == 0);
}

TEST_CASE("cluster barriers order a cluster and do not wait for the others") {
  const int num_workers = GENERATE(2, 3, 8);
  Team team({.num_workers = num_workers, .num_clusters = 2});
  std::vector<int> phase_of(size_t(num_workers), 0);
  std::atomic<int> wrong{0};
  team.run([&](const Worker& w) {
    // Cluster 0 does 100 phases, cluster 1 does 37: with a common barrier this would hang.
    const Range cluster = partition(w.num_workers, w.cluster, 2);
    for (int phase = 1; phase <= (w.cluster == 0 ? 100 : 37); ++phase) {
      phase_of[size_t(w.worker)] = phase;
      team.cluster_barrier(w);
      for (int64_t i = cluster.begin; i < cluster.end; ++i) wrong += phase_of[size_t(i)] != phase;
      team.cluster_barrier(w);
    }
    team.barrier(w);
  });
  CHECK(wrong == 0);
}

TEST_CASE("clusters may differ in size") {
  Team team({.num_workers = 6, .num_clusters = 3, .cluster_sizes = {1, 3, 2}});
  std::vector<Worker> seen(6);
  std::atomic<int> wrong{0};
  std::vector<int> phase_of(6, 0);
  team.run([&](const Worker& w) {
    seen[size_t(w.worker)] = w;
    const int first = w.worker - w.worker_in_cluster;
    for (int phase = 1; phase <= 20 * (w.cluster + 1); ++phase) {  // clusters do not wait for each other
      phase_of[size_t(w.worker)] = phase;
      team.cluster_barrier(w);
      for (int i = first; i < first + w.workers_in_cluster; ++i) wrong += phase_of[size_t(i)] != phase;
      team.cluster_barrier(w);
    }
    team.barrier(w);
  });
  CHECK(wrong == 0);
  const std::vector<std::vector<int>> expected = {{0, 0, 1}, {1, 0, 3}, {1, 1, 3}, {1, 2, 3}, {2, 0, 2}, {2, 1, 2}};
  for (size_t i = 0; i < 6; ++i)
    CHECK(std::vector<int>{seen[i].cluster, seen[i].worker_in_cluster, seen[i].workers_in_cluster} == expected[i]);
}

TEST_CASE("sleeping workers wake up") {
  Team team({.num_workers = 3, .spin_pauses = 0});
  std::atomic<int> calls{0}, asleep{0};
  for (int run = 0; run < 3; ++run) {
    CHECK(others_sleep());  // at the fork
    team.run([&](const Worker& w) {
      if (w.worker == run) asleep += others_sleep();  // at the barrier
      team.barrier(w);
      if (w.worker == 2 - run) asleep += others_sleep();  // at the join
      ++calls;
    });
  }
  CHECK(calls == 9);
  CHECK(asleep == 6);
}

TEST_CASE("the exception of the lowest worker comes out and the team still works") {
  const int num_workers = GENERATE(1, 2, 3, 8);
  Team team({.num_workers = num_workers});
  for (int run = 0; run < 50; ++run) {
    CHECK_THROWS_WITH(team.run([&](const Worker& w) {
      if (w.worker >= num_workers / 2) throw std::runtime_error("worker " + std::to_string(w.worker));
    }),
                      "worker " + std::to_string(num_workers / 2));
    std::atomic<int> calls{0};
    team.run([&](const Worker&) { ++calls; });
    REQUIRE(calls == num_workers);
  }
}

TEST_CASE("a worker that throws frees those that wait at barriers") {
  const int num_workers = GENERATE(2, 3, 8);
  const int thrower = GENERATE(0, 1);
  const int spin_pauses = GENERATE(int{Team::kAuto}, 0);
  Team team({.num_workers = num_workers, .num_clusters = 2, .spin_pauses = spin_pauses});
  std::atomic<int> passed{0}, phases{0};
  for (int run = 0; run < 200; ++run) {
    CHECK_THROWS_AS(team.run([&](const Worker& w) {
      if (w.worker == thrower) throw InputError({.where = "x", .what = "y"});
      if (w.worker % 2) team.cluster_barrier(w);
      team.barrier(w);
      ++passed;
    }),
                    InputError);
    team.run([&](const Worker& w) {  // the barriers are whole again
      team.cluster_barrier(w);
      team.barrier(w);
      ++phases;
    });
  }
  CHECK(passed == 0);
  CHECK(phases == 200 * num_workers);
}

TEST_CASE("a run inside a run is an error, whoever does it") {
  const int num_workers = GENERATE(1, 2);
  Team team({.num_workers = num_workers});
  for (int culprit = 0; culprit < num_workers; ++culprit)
    CHECK_THROWS_AS(team.run([&](const Worker& w) {
      if (w.worker == culprit) team.run([](const Worker&) {});
    }),
                    LogicFault);
  std::atomic<int> calls{0};
  team.run([&](const Worker&) { ++calls; });
  CHECK(calls == num_workers);
}

TEST_CASE("anything callable can be run") {
  Team team({.num_workers = 2});
  std::atomic<int> sum{0};
  const std::function<void(const Worker&)> f = [&](const Worker& w) { sum += 1 + w.worker; };
  team.run(f);
  struct Counter {
    std::atomic<int>& sum;
    void operator()(const Worker&) { ++sum; }
  } counter{sum};
  team.run(counter);
  CHECK(sum == 3 + 2);
}

TEST_CASE("workers are bound to their PUs and the caller gets its mask back") {
  const std::vector<int> before = platform::affinity_mask();
  std::vector<int> pus;
  for (int i = 0; i < 3; ++i) pus.push_back(before[size_t(i) % before.size()]);
  std::vector<std::vector<int>> masks(3);
  {
    Team team({.num_workers = 3, .pus = pus});
    CHECK(team.binding_failures().empty());
    team.run([&](const Worker& w) { masks[size_t(w.worker)] = platform::affinity_mask(); });
  }
  for (size_t i = 0; i < 3; ++i) CHECK(masks[i] == std::vector<int>{pus[i]});
  CHECK(platform::affinity_mask() == before);
}

TEST_CASE("a binding that the system refuses is told, not fatal") {
  const int there = platform::affinity_mask().front();
  Team team({.num_workers = 2, .pus = {there, 60000}});
  REQUIRE(team.binding_failures().size() == 1);
  CHECK_THAT(team.binding_failures()[0], Catch::Contains("worker 1") && Catch::Contains("60000"));
  std::atomic<int> calls{0};
  team.run([&](const Worker&) { ++calls; });
  CHECK(calls == 2);
}

TEST_CASE("impossible teams are refused") {
  CHECK_THROWS_AS(Team({.num_workers = 0}), LogicFault);
  CHECK_THROWS_AS(Team({.num_workers = 2, .num_clusters = 3}), LogicFault);
  CHECK_THROWS_AS(Team({.num_workers = 2, .num_clusters = 0}), LogicFault);
  CHECK_THROWS_AS(Team({.num_workers = 2, .pus = {0}}), LogicFault);
  for (const std::vector<int>& sizes : {std::vector<int>{2}, {2, 1}, {2, 0}, {3, -1}})
    CHECK_THROWS_AS(Team({.num_workers = 2, .num_clusters = 2, .cluster_sizes = sizes}), LogicFault);
}
