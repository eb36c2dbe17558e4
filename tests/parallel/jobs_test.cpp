#include "ditrain/parallel/jobs.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <vector>

using namespace ditrain;

TEST_CASE("every job runs once, and the first error of one comes out") {
  for (const int64_t n : {0, 1, 1000}) {
    std::vector<std::atomic<int>> runs(size_t(n) + 1);
    parallel::run_jobs(n, {}, [&](int64_t i) { ++runs[size_t(i)]; });
    for (int64_t i = 0; i < n; ++i) REQUIRE(runs[size_t(i)] == 1);
    CHECK(runs[size_t(n)] == 0);
  }
  CHECK_THROWS_WITH(parallel::run_jobs(100, {},
                                       [](int64_t i) {
                                         if (i == 50) throw std::runtime_error("job 50");
                                       }),
                    "job 50");
}

TEST_CASE("a team takes jobs in the same way") {
  parallel::Team team({.num_workers = 2});
  std::vector<std::atomic<int>> runs(1000);
  parallel::run_jobs(team, 1000, [&](int64_t i) { ++runs[size_t(i)]; });
  for (const auto& times : runs) REQUIRE(times == 1);
  CHECK_THROWS_WITH(parallel::run_jobs(team, 100,
                                       [](int64_t i) {
                                         if (i == 50) throw std::runtime_error("job 50");
                                       }),
                    "job 50");
}
