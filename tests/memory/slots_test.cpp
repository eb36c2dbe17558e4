// The map of a pool: who has which range, and which row of neighbours is cheapest to take.
#include "ditrain/memory/slots.hpp"

#include <catch2/catch.hpp>
#include <random>

#include "ditrain/base/error.hpp"

using namespace ditrain;
using memory::SlotMap;

namespace {
const SlotMap::Cost kNothingLeaves = [](int64_t) { return std::nullopt; };
}  // namespace

TEST_CASE("ranges are given, freed and merged") {
  SlotMap map(100);
  CHECK(map.find(100, kNothingLeaves)->offset == 0);
  CHECK_FALSE(map.find(101, kNothingLeaves));
  map.take(0, 40, 1), map.take(40, 30, 2), map.take(70, 30, 3);
  CHECK(map.used_bytes() == 100);
  CHECK_FALSE(map.find(1, kNothingLeaves));
  map.free(40);
  CHECK(map.find(30, kNothingLeaves)->offset == 40);
  CHECK_FALSE(map.find(31, kNothingLeaves));
  map.free(0);
  CHECK(map.find(70, kNothingLeaves)->offset == 0);
  map.free(70);
  CHECK(map.find(100, kNothingLeaves));
  CHECK(map.used_bytes() == 0);
  CHECK_THROWS_AS(map.free(0), LogicFault);
  map.take(10, 20, 1);
  CHECK_THROWS_AS(map.take(20, 5, 2), LogicFault);
  CHECK_THROWS_AS(map.take(5, 10, 2), LogicFault);
}

TEST_CASE("room for a large tensor is made from the cheapest row of neighbours") {
  SlotMap map(100);
  for (int64_t owner = 0; owner < 5; ++owner) map.take(size_t(owner) * 20, 20, owner);
  const double costs[] = {1, 9, 2, 3, 4};
  const SlotMap::Cost cost = [&](int64_t owner) -> std::optional<double> { return costs[owner]; };
  CHECK(map.find(20, cost)->owners == std::vector<int64_t>{0});
  CHECK(map.find(40, cost)->owners == std::vector<int64_t>{2, 3});
  CHECK(map.find(60, cost)->owners == std::vector<int64_t>{2, 3, 4});
  const SlotMap::Cost three_stays = [&](int64_t owner) { return owner == 3 ? std::nullopt : cost(owner); };
  CHECK(map.find(40, three_stays)->owners == std::vector<int64_t>{0, 1});
  CHECK_FALSE(map.find(80, three_stays));
  map.free(80);
  CHECK(map.find(40, cost)->owners == std::vector<int64_t>{3});  // what is free costs nothing
}

TEST_CASE("many tensors of many sizes never overlap") {
  SlotMap map(1000);
  std::mt19937 random(7);
  std::map<int64_t, std::pair<size_t, size_t>> held;
  for (int64_t owner = 0; owner < 2000; ++owner) {
    const size_t bytes = 1 + random() % 200;
    const auto window = map.find(bytes, [](int64_t o) -> std::optional<double> { return double(o); });
    REQUIRE(window);
    for (const int64_t leaving : window->owners) map.free(held.at(leaving).first), held.erase(leaving);
    map.take(window->offset, bytes, owner);
    held[owner] = {window->offset, bytes};
    size_t sum = 0;
    for (const auto& [id, range] : held) {
      sum += range.second;
      for (const auto& [other, at] : held)
        if (id < other) REQUIRE((range.first + range.second <= at.first || at.first + at.second <= range.first));
    }
    REQUIRE(map.used_bytes() == sum);
  }
}
