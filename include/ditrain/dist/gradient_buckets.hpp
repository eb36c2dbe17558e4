// Sums gradients over ranks while backward still runs. The gradient arena lies in the reverse of the order in which
// gradients become final, so buckets are plain slices counted from its end: no copies, no lists of tensors.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "ditrain/dist/communicator.hpp"

namespace ditrain::dist {

/// Buckets of one gradient arena. A step: mark_ready(...) for every slice, or start_all(); then finish().
/// Math:    arena[i] becomes the sum over ranks; dividing is left to the optimiser (grad_scale)
/// Order:   bucket k holds elements n-(k+1)*bucket_elements ... n-k*bucket_elements (the last one may be shorter);
///          buckets start in the order 0, 1, ... on every rank, whatever the order of mark_ready calls
/// Threads: one thread calls it
/// Errors:  throws LogicFault for slices out of range or marked twice, and for finish() before all was marked
class GradientBuckets {
 public:
  /// The communicator and the arena (n values) must outlive the buckets. bucket_elements >= 1.
  GradientBuckets(Communicator& communicator, float* arena, int64_t n, int64_t bucket_elements);

  /// The gradients begin <= i < end are final on this rank. Starts every bucket that is complete now.
  void mark_ready(int64_t begin, int64_t end);
  /// All gradients that were not marked yet are final.
  void start_all();
  /// Returns when every bucket is summed; the next step may begin then.
  void finish();

  int64_t num_buckets() const;
  /// Seconds spent inside finish() since the last reset(): communication that backward did not hide.
  double exposed_s() const { return exposed_s_; }
  void reset() { exposed_s_ = 0; }

 private:
  int64_t bucket_begin(int64_t bucket) const;
  int64_t bucket_end(int64_t bucket) const;
  void start_complete_buckets();
  void rearm();

  Communicator& communicator_;
  float* arena_;
  int64_t n_, bucket_elements_;
  std::vector<int64_t> missing_;  // of each bucket: elements that are not final yet
  std::vector<std::unique_ptr<Request>> requests_;
  int64_t started_ = 0, done_ = 0;  // buckets 0 ... started_-1 are under way or done, 0 ... done_-1 are done
  double exposed_s_ = 0;
};

}  // namespace ditrain::dist
