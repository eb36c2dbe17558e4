#include "ditrain/dataset/sampler.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <vector>

#include "ditrain/base/error.hpp"

using namespace ditrain;
using namespace ditrain::dataset;

namespace {
std::vector<int64_t> epoch(const EpochSampler& sampler, int64_t number) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < sampler.size(); ++i) order.push_back(sampler.index_at(number * sampler.size() + i));
  return order;
}
}  // namespace

TEST_CASE("every epoch is a permutation of the set") {
  for (int64_t size : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 99, 100, 101, 1000, 4095, 50000})
    for (int64_t number : {0, 1, 7}) {
      std::vector<int> seen(size_t(size), 0);
      for (int64_t index : epoch(EpochSampler(size, 3), number)) {
        REQUIRE(index >= 0);
        REQUIRE(index < size);
        REQUIRE(++seen[size_t(index)] == 1);
      }
    }
}

TEST_CASE("epochs and seeds have orders of their own") {
  const EpochSampler a(1000, 1), b(1000, 2);
  CHECK(epoch(a, 0) == epoch(EpochSampler(1000, 1), 0));
  CHECK(epoch(a, 0) != epoch(a, 1));
  CHECK(epoch(a, 0) != epoch(b, 0));
  const auto order = epoch(a, 0);
  int64_t fixed = 0, steps_of_one = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    fixed += order[i] == int64_t(i);
    steps_of_one += i > 0 && order[i] == order[i - 1] + 1;
  }
  CHECK(fixed < 8);  // a random order has 1 of each on average
  CHECK(steps_of_one < 8);
}

TEST_CASE("all orders of a small set come up about equally often") {
  constexpr int64_t kEpochs = 24000;
  const EpochSampler sampler(4, 9);
  std::vector<int64_t> count(256, 0);
  for (int64_t e = 0; e < kEpochs; ++e) {
    size_t code = 0;
    for (int64_t index : epoch(sampler, e)) code = code * 4 + size_t(index);
    ++count[code];
  }
  int64_t orders = 0;
  for (int64_t c : count) {
    if (c == 0) continue;
    ++orders;
    CHECK(std::abs(double(c) - 1000.0) < 155.0);  // 5 sigma
  }
  CHECK(orders == 24);
}

TEST_CASE("each place of a larger set gets each part of it equally often") {
  const EpochSampler sampler(1000, 4);
  std::vector<int> tenth(10, 0);
  for (int64_t e = 0; e < 5000; ++e) ++tenth[size_t(sampler.index_at(e * 1000 + 17) / 100)];
  for (int c : tenth) CHECK(std::abs(c - 500) < 107);  // 5 sigma
}

TEST_CASE("far positions of huge sets are reached at once") {
  const EpochSampler sampler(int64_t{1} << 40, 1);
  std::set<int64_t> indices;
  for (int64_t i = 0; i < 1000; ++i) indices.insert(sampler.index_at((int64_t{1} << 40) * 1000 + 12345 + i));
  CHECK(indices.size() == 1000);  // of one epoch
  CHECK((*indices.begin() >= 0 && *indices.rbegin() < int64_t{1} << 40));
  CHECK(*indices.rbegin() - *indices.begin() > int64_t{1} << 39);  // from all over the set
  CHECK_THROWS_AS(EpochSampler(0, 1), InputError);
  CHECK_THROWS_AS(EpochSampler((int64_t{1} << 40) + 1, 1), InputError);
  CHECK_THROWS_AS(sampler.index_at(-1), LogicFault);
}
