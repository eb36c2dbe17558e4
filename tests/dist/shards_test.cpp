#include "ditrain/dist/shards.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/dist/sums.hpp"

using namespace ditrain::dist;

TEST_CASE("buckets cover the arena from its end") {
  const BucketGrid grid{10, 4};
  REQUIRE(grid.size() == 3);
  CHECK((grid[0].begin == 6 && grid[0].end == 10));
  CHECK((grid[2].begin == 0 && grid[2].end == 2));
  CHECK(BucketGrid{0, 4}.size() == 0);
  CHECK(BucketGrid{8, 4}.size() == 2);
}

TEST_CASE("slices that are a bucket each are never cut, and others end at them") {
  using Range = ditrain::parallel::Range;
  const BucketGrid grid{30, 4, {{0, 7}, {21, 30}, {10, 12}}};
  std::vector<Range> buckets;
  for (int64_t k = 0; k < grid.size(); ++k) buckets.push_back(grid[k]);
  CHECK(buckets == std::vector<Range>{{21, 30}, {17, 21}, {13, 17}, {12, 13}, {10, 12}, {7, 10}, {0, 7}});
  for (int64_t i = 0; i < 30; ++i) {
    const Range& bucket = grid[grid.holding(i)];
    CHECK((bucket.begin <= i && i < bucket.end));
  }
  using Whole = std::vector<WholeBucket>;
  CHECK_THROWS_AS((BucketGrid{30, 4, Whole{{0, 7}, {6, 9}}}), ditrain::LogicFault);
  CHECK_THROWS_AS((BucketGrid{30, 4, Whole{{29, 31}}}), ditrain::LogicFault);
  CHECK_THROWS_AS((BucketGrid{30, 4, Whole{{5, 5}}}), ditrain::LogicFault);
}

TEST_CASE("shards of all ranks are the arena, once, in whole pieces, packed without holes") {
  for (const int ranks : {1, 2, 3, 7})
    for (const int64_t n : {int64_t{0}, int64_t{1}, 3 * kPiece, 10 * kPiece + 5})
      for (const int64_t bucket : {kPiece, 4 * kPiece + 11, 100 * kPiece}) {
        CAPTURE(ranks, n, bucket);
        std::vector<int> owners(size_t(n), 0);
        const Shards first({n, bucket}, 0, ranks);
        for (int rank = 0; rank < ranks; ++rank) {
          const Shards shards({n, bucket}, rank, ranks);
          int64_t packed = 0;
          for (const auto& part : shards.parts()) {
            packed += part.size();
            for (int64_t i = part.begin; i < part.end; ++i) ++owners[size_t(i)];
          }
          CHECK(shards.size() == packed);
          CHECK(shards.size() <= first.size());
          CHECK(largest_shards({n, bucket}, ranks) == first.size());
          CHECK(int64_t(shards.parts().size()) == shards.grid().size());
        }
        CHECK(owners == std::vector<int>(size_t(n), 1));
      }
  CHECK(shard_of(3 * kPiece + 1, 1, 2) == ditrain::parallel::Range{2 * kPiece, 3 * kPiece + 1});
}

TEST_CASE("a bucket that one rank owns is that rank's shard, and the others are cut as ever") {
  const BucketGrid grid{10 * kPiece, 4 * kPiece, {{.begin = kPiece, .end = 3 * kPiece + 7, .owner = 2}}};
  REQUIRE(grid.size() == 4);
  const ditrain::parallel::Range owned{kPiece, 3 * kPiece + 7};
  for (int64_t k = 0; k < grid.size(); ++k) CHECK(grid.is_owned(k) == (grid[k] == owned));
  std::vector<int> owners(size_t(grid.n()), 0);
  int64_t most = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const Shards shards(grid, rank, 4);
    most = std::max(most, shards.size());
    for (const auto& part : shards.parts())
      for (int64_t i = part.begin; i < part.end; ++i) ++owners[size_t(i)];
    CHECK((shards.parts()[2] == owned) == (rank == 2));
    CHECK(shards.parts()[2].empty() == (rank != 2));
  }
  CHECK(owners == std::vector<int>(size_t(grid.n()), 1));
  CHECK(largest_shards(grid, 4) == most);
  CHECK(most > Shards(grid, 0, 4).size());
  CHECK(shard_of(10, 2, 4, {.grain = 3, .first = 1}) == ditrain::parallel::Range{3, 6});
}
