// Which rank keeps which part of a flat arena whose gradients travel in buckets.
#pragma once
#include <cstdint>
#include <vector>

#include "ditrain/dist/sums.hpp"
#include "ditrain/parallel/partition.hpp"

namespace ditrain::dist {

/// An arena of n elements, split into buckets from its end. Each range of `whole` is one bucket; each gap between them
/// is split from its end into buckets of bucket_elements, the last one shorter.
class BucketGrid {
 public:
  /// n >= 0, bucket_elements >= 1; `whole` in any order, without overlaps.
  BucketGrid(int64_t n, int64_t bucket_elements, std::vector<parallel::Range> whole = {});
  int64_t n() const { return n_; }
  int64_t size() const { return int64_t(buckets_.size()); }
  const parallel::Range& operator[](int64_t k) const { return buckets_[size_t(k)]; }
  int64_t holding(int64_t element) const;  ///< the number of the bucket with this element of the arena
  /// Shards of bucket k begin at multiples of this grain: whole pieces of sums.hpp, or less for a bucket of `whole`,
  /// which is not summed.
  int64_t shard_grain(int64_t k) const { return whole_[size_t(k)] ? kWholeGrain : kPiece; }

 private:
  static constexpr int64_t kWholeGrain = 64;
  int64_t n_;
  std::vector<parallel::Range> buckets_;
  std::vector<bool> whole_;
};

/// A rank's part of n elements, in order of rank and in multiples of `grain` (the pieces of sums.hpp).
parallel::Range shard_of(int64_t n, int rank, int ranks, int64_t grain = kPiece);

/// The parts of one rank, one in every bucket; some may be empty.
class Shards {
 public:
  Shards(const BucketGrid& grid, int rank, int ranks);
  const std::vector<parallel::Range>& parts() const { return parts_; }  ///< by bucket
  int64_t size() const { return size_; }  ///< elements of all parts; none has more than rank 0
  const BucketGrid& grid() const { return grid_; }

 private:
  BucketGrid grid_;
  std::vector<parallel::Range> parts_;
  int64_t size_ = 0;
};

}  // namespace ditrain::dist
