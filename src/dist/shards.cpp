#include "ditrain/dist/shards.hpp"

#include <algorithm>
#include <string>

#include "ditrain/base/error.hpp"

namespace ditrain::dist {

BucketGrid::BucketGrid(int64_t n, int64_t bucket_elements, std::vector<WholeBucket> whole) : n_(n) {
  DITRAIN_CHECK(n >= 0 && bucket_elements >= 1,
                std::to_string(n) + " in buckets of " + std::to_string(bucket_elements));
  std::sort(whole.begin(), whole.end(), [](const auto& a, const auto& b) { return a.begin > b.begin; });
  int64_t end = n;
  const auto cut_down_to = [&](int64_t begin) {
    for (; end > begin; end = buckets_.back().begin) buckets_.push_back({std::max(begin, end - bucket_elements), end});
    cuts_.resize(buckets_.size()), owned_.resize(buckets_.size(), false);
  };
  for (const WholeBucket& slice : whole) {
    DITRAIN_CHECK(slice.begin >= 0 && slice.begin < slice.end && slice.end <= end, "slices of a bucket each overlap");
    cut_down_to(slice.end);
    const bool owned = slice.owner >= 0;
    buckets_.push_back({slice.begin, slice.end});
    cuts_.push_back(owned ? ShardCut{slice.end - slice.begin, slice.owner} : ShardCut{kWholeGrain});
    owned_.push_back(owned);
    end = slice.begin;
  }
  cut_down_to(0);
}

int64_t BucketGrid::holding(int64_t element) const {
  return std::partition_point(buckets_.begin(), buckets_.end(),
                              [&](const parallel::Range& bucket) { return bucket.begin > element; }) -
         buckets_.begin();
}

parallel::Range shard_of(int64_t n, int rank, int ranks, const ShardCut& cut) {
  return parallel::partition(n, (rank - cut.first % ranks + ranks) % ranks, ranks, cut.grain);
}

Shards::Shards(const BucketGrid& grid, int rank, int ranks) : grid_(grid) {
  for (int64_t k = 0; k < grid.size(); ++k) {
    const parallel::Range bucket = grid[k], mine = shard_of(bucket.size(), rank, ranks, grid.cut(k));
    parts_.push_back({bucket.begin + mine.begin, bucket.begin + mine.end});
    size_ += mine.size();
  }
}

int64_t largest_shards(const BucketGrid& grid, int ranks) {
  int64_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) most = std::max(most, Shards(grid, rank, ranks).size());
  return most;
}

}  // namespace ditrain::dist
