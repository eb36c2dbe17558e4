// Who keeps which part of a flat arena whose gradients travel in buckets.
#pragma once
#include <cstdint>
#include <vector>

#include "ditrain/parallel/partition.hpp"

namespace ditrain::dist {

/// An arena of n elements cut into buckets from its end: bucket k holds elements n - (k+1) bucket_elements ...
/// n - k bucket_elements; the last one may be shorter.
struct BucketGrid {
  int64_t n = 0, bucket_elements = 1;  ///< >= 0, >= 1
  int64_t size() const { return n / bucket_elements + (n % bucket_elements != 0); }
  parallel::Range operator[](int64_t k) const {
    const int64_t end = n - k * bucket_elements;
    return {end > bucket_elements ? end - bucket_elements : 0, end};
  }
};

/// A rank's part of the first n elements of anything: whole pieces of sums.hpp, the parts of lower ranks before it.
parallel::Range shard_of(int64_t n, int rank, int ranks);

/// The parts of one rank, one of every bucket, and where they lie in arenas that hold nothing else.
class Shards {
 public:
  struct Part {
    parallel::Range arena;  ///< elements of the whole arena; may be empty
    int64_t state = 0;      ///< where the first of them is among the rank's own
  };
  Shards(const BucketGrid& grid, int rank, int ranks);
  const std::vector<Part>& parts() const { return parts_; }  ///< by bucket
  int64_t size() const { return size_; }                     ///< elements of all parts; none has more than rank 0
  const BucketGrid& grid() const { return grid_; }

 private:
  BucketGrid grid_;
  std::vector<Part> parts_;
  int64_t size_ = 0;
};

}  // namespace ditrain::dist
