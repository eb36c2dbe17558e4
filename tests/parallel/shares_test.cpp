// Work that is shared out while it is done: all of it once, by whoever has time.
#include "ditrain/parallel/shares.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "ditrain/parallel/team.hpp"

using namespace ditrain;
using parallel::Range;
using parallel::Shares;
using parallel::Worker;

namespace {

/// How often each piece of each worker's part was taken.
struct Counts {
  explicit Counts(const std::vector<int64_t>& parts) {
    for (const int64_t pieces : parts)
      counts.emplace_back(new std::atomic<int>[size_t(pieces)]()), sizes.push_back(pieces);
  }
  void add(int owner, const Range& pieces) {
    for (int64_t i = pieces.begin; i < pieces.end; ++i) ++counts[size_t(owner)][size_t(i)];
  }
  bool all_once() const {
    for (size_t owner = 0; owner < sizes.size(); ++owner)
      for (int64_t i = 0; i < sizes[owner]; ++i)
        if (counts[owner][size_t(i)] != 1) return false;
    return true;
  }
  std::vector<std::unique_ptr<std::atomic<int>[]>> counts;
  std::vector<int64_t> sizes;
};

}  // namespace

TEST_CASE("shares: every piece is taken once, job after job without barriers between them") {
  constexpr int kWorkers = 4, kJobs = 300;
  parallel::Team team({.num_workers = kWorkers});
  Shares shares(kWorkers);
  std::vector<Counts> jobs;
  for (int64_t job = 0; job < kJobs; ++job) jobs.emplace_back(std::vector<int64_t>{job, 0, 7 * job % 11, 1});
  team.run([&](const Worker& w) {
    for (Counts& job : jobs)
      shares.take(w.worker, job.sizes[size_t(w.worker)], 1,
                  [&](int owner, const Range& pieces) { job.add(owner, pieces); });
  });
  for (int job = 0; job < kJobs; ++job) {
    CAPTURE(job);
    CHECK(jobs[size_t(job)].all_once());
  }
}

TEST_CASE("shares: a worker alone gets its part from front to back") {
  Shares shares(2);
  std::vector<Range> taken;
  shares.take(0, 9, 1, [&](int owner, const Range& pieces) {
    CHECK(owner == 0);
    taken.push_back(pieces);
  });
  CHECK(taken == std::vector<Range>{{0, 3}, {3, 5}, {5, 6}, {6, 7}, {7, 8}, {8, 9}});
}

TEST_CASE("shares: a worker that is done takes from the end of what a slow one has left") {
  constexpr int64_t kPieces = 90;
  parallel::Team team({.num_workers = 2});
  Shares shares(2);
  Counts counts({kPieces, kPieces});
  std::atomic<bool> slow_has_begun = false;
  int64_t by_slow = 0;
  team.run([&](const Worker& w) {
    if (w.worker == 1)
      while (!slow_has_begun) std::this_thread::yield();
    shares.take(w.worker, kPieces, 1, [&](int owner, const Range& pieces) {
      counts.add(owner, pieces);
      if (w.worker == 1) return;
      CHECK(owner == 0);
      by_slow += pieces.size();
      slow_has_begun = true;
      while (counts.counts[0][kPieces - 1] == 0) std::this_thread::yield();  // until the other has taken from its end
    });
  });
  CHECK(counts.all_once());
  CHECK(by_slow >= kPieces / 3);
  CHECK(by_slow < kPieces);
}

TEST_CASE("shares: a job that a worker did not end leaves nothing to the next one") {
  parallel::Team team({.num_workers = 2});
  Shares shares(2);
  CHECK_THROWS_AS(team.run([&](const Worker& w) {
    if (w.worker == 1) throw std::runtime_error("a worker fails");
    shares.take(0, 5, 1, [](int, const Range&) { throw std::runtime_error("and another one"); });
  }),
                  std::runtime_error);
  const auto owners_met = [&] {
    std::vector<int> owners;
    shares.take(1, 6, 1, [&](int owner, const Range&) { owners.push_back(owner); });
    std::sort(owners.begin(), owners.end());
    owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
    return owners;
  };
  shares.reset();
  CHECK(owners_met() == std::vector<int>{1});
}

TEST_CASE("shares: with a stride, workers take from parts of their own column only") {
  constexpr int kWorkers = 4;
  parallel::Team team({.num_workers = kWorkers});
  Shares shares(kWorkers);
  std::vector<Counts> jobs;
  for (int64_t job = 0; job < 100; ++job) jobs.emplace_back(std::vector<int64_t>{job, 5, 3, 2 * job});
  team.run([&](const Worker& w) {
    for (Counts& job : jobs)
      shares.take(w.worker, job.sizes[size_t(w.worker)], 2, [&](int owner, const Range& pieces) {
        if (owner % 2 == w.worker % 2) job.add(owner, pieces);
      });
  });
  CHECK(std::all_of(jobs.begin(), jobs.end(), [](const Counts& job) { return job.all_once(); }));
}
