// Which rank keeps which part of a flat arena whose gradients are summed in buckets.
#pragma once
#include <cstdint>
#include <vector>

#include "ditrain/dist/sums.hpp"
#include "ditrain/parallel/partition.hpp"

namespace ditrain::dist {

/// How a bucket is split into shards: at multiples of `grain` elements, the parts in order of rank from rank `first`
/// on.
struct ShardCut {
  int64_t grain = kPiece;
  int first = 0;
};
/// A rank's part of n elements.
parallel::Range shard_of(int64_t n, int rank, int ranks, const ShardCut& cut = {});

/// A slice that is one bucket: either the shard of one rank, or split at any element, because ranks do not sum it.
struct WholeBucket {
  int64_t begin = 0, end = 0;
  int owner = -1;  ///< rank that has all of it as its shard; -1: the bucket is split
};

/// An arena of n elements, split into buckets from its end. Each slice of `whole` is one bucket; each gap between them
/// is split from its end into buckets of bucket_elements, the last one shorter.
class BucketGrid {
 public:
  /// n >= 0, bucket_elements >= 1; `whole` in any order, without overlaps.
  BucketGrid(int64_t n, int64_t bucket_elements, std::vector<WholeBucket> whole = {});
  int64_t n() const { return n_; }
  int64_t size() const { return int64_t(buckets_.size()); }
  const parallel::Range& operator[](int64_t k) const { return buckets_[size_t(k)]; }
  int64_t holding(int64_t element) const;  ///< the number of the bucket with this element of the arena
  /// How bucket k is split into shards: at whole pieces of sums.hpp, unless it is one of `whole`.
  const ShardCut& cut(int64_t k) const { return cuts_[size_t(k)]; }
  bool is_owned(int64_t k) const { return owned_[size_t(k)]; }  ///< the bucket is the shard of one rank

 private:
  static constexpr int64_t kWholeGrain = 64;
  int64_t n_;
  std::vector<parallel::Range> buckets_;
  std::vector<ShardCut> cuts_;
  std::vector<bool> owned_;
};

/// The parts of one rank, one in every bucket; some may be empty.
class Shards {
 public:
  Shards(const BucketGrid& grid, int rank, int ranks);
  const std::vector<parallel::Range>& parts() const { return parts_; }  ///< by bucket
  int64_t size() const { return size_; }                                ///< elements of all parts
  const BucketGrid& grid() const { return grid_; }

 private:
  BucketGrid grid_;
  std::vector<parallel::Range> parts_;
  int64_t size_ = 0;
};

/// Number of elements of the rank whose shards are largest.
int64_t largest_shards(const BucketGrid& grid, int ranks);

}  // namespace ditrain::dist
