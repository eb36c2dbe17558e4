#include "ditrain/parallel/partition.hpp"

#include <catch2/catch.hpp>
#include <limits>

using namespace ditrain::parallel;

TEST_CASE("parts cover the range once, in order, at multiples of the grain, balanced") {
  for (const int64_t n : {0, 1, 2, 7, 16, 63, 64, 65, 1000})
    for (const int parts : {1, 2, 3, 8, 100})
      for (const int64_t grain : {1, 2, 16, 64, 5000}) {
        const int64_t pieces = (n + grain - 1) / grain;
        int64_t expected_begin = 0;
        for (int part = 0; part < parts; ++part) {
          const Range r = partition(n, part, parts, grain);
          CAPTURE(n, part, parts, grain, r.begin, r.end);
          REQUIRE(r.begin == expected_begin);
          REQUIRE(r.end >= r.begin);
          REQUIRE((r.begin % grain == 0 || r.begin == n));
          const int64_t own_pieces = (r.size() + grain - 1) / grain;
          REQUIRE((own_pieces == pieces / parts || own_pieces == pieces / parts + 1));
          expected_begin = r.end;
        }
        REQUIRE(expected_begin == n);
      }
}

TEST_CASE("partition examples") {
  static_assert(partition(10, 0, 3) == Range{0, 4});
  static_assert(partition(10, 1, 3) == Range{4, 7});
  static_assert(partition(10, 2, 3) == Range{7, 10});
  static_assert(partition(10, 1, 2, 8) == Range{8, 10});
  CHECK(partition(3, 3, 4).empty());
  CHECK(partition(10, 0, 3).size() == 4);
}

TEST_CASE("partition of the largest range does not overflow") {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  CHECK(partition(kMax, 6, 7).end == kMax);
  CHECK(partition(kMax, 1, 2, kMax / 2) == Range{kMax / 2 * 2, kMax});
  CHECK(partition(kMax, 0, 1, kMax) == Range{0, kMax});
}
