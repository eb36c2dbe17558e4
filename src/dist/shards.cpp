#include "ditrain/dist/shards.hpp"

#include "ditrain/dist/sums.hpp"

namespace ditrain::dist {

parallel::Range shard_of(int64_t n, int rank, int ranks) { return parallel::partition(n, rank, ranks, kPiece); }

Shards::Shards(const BucketGrid& grid, int rank, int ranks) : grid_(grid) {
  for (int64_t k = 0; k < grid.size(); ++k) {
    const parallel::Range bucket = grid[k], mine = shard_of(bucket.size(), rank, ranks);
    parts_.push_back({{bucket.begin + mine.begin, bucket.begin + mine.end}, size_});
    size_ += mine.size();
  }
}

}  // namespace ditrain::dist
