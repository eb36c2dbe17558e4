// Sums gradients over ranks while backward still runs. The gradient arena lies in the reverse of the order in which
// gradients become final, so buckets are plain slices counted from its end: no copies, no lists of tensors.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ditrain/dist/communicator.hpp"
#include "ditrain/dist/engine.hpp"
#include "ditrain/dist/shards.hpp"

namespace ditrain::dist {

/// What the buckets of the last finished step tell.
struct StepOutcome {
  std::optional<double> sum_squares;  ///< of all summed gradients; nothing if they were summed without an engine
  double communication_s = 0;         ///< with at least one bucket under way, waiting for slower ranks included
  double exposed_s = 0;               ///< of which somebody waited in finish_next() or finish()
  std::vector<ReductionOutcome> buckets = {};  ///< in the order of their starts, from an engine
  double hidden_s() const { return communication_s > exposed_s ? communication_s - exposed_s : 0; }
};

/// Buckets of one gradient arena. A step: mark_ready(...) for every slice, or start_all(); then finish().
/// Math:    arena[i] becomes the sum over ranks; dividing is left to the optimiser (grad_scale)
/// Order:   buckets are those of BucketGrid and start in the order 0, 1, ... on every rank, whatever the order of
///          mark_ready calls
/// Threads: one thread calls it
/// Errors:  throws LogicFault for slices out of range or marked twice, and for finish() before all was marked;
///          RunError naming ranks if a bucket is not there after the communicator's timeout
class GradientBuckets {
 public:
  /// The communicator (or the engine) and the arena (n values) must outlive the buckets. bucket_elements >= 1.
  GradientBuckets(Communicator& communicator, float* arena, int64_t n, int64_t bucket_elements);
  GradientBuckets(Engine& engine, float* arena, int64_t n, int64_t bucket_elements);

  using Slice = parallel::Range;

  /// The gradients begin <= i < end are final on this rank. Starts every bucket that is complete now.
  void mark_ready(int64_t begin, int64_t end);
  /// All gradients that were not marked yet are final.
  void start_all();
  /// Returns once the next bucket is summed, which one may use then; nothing when there is none left. Only after all
  /// was marked.
  std::optional<Slice> finish_next();
  /// Returns when every bucket is summed; the next step may begin then.
  void finish();

  int64_t num_buckets() const;
  Slice bucket(int64_t k) const { return grid_[k]; }
  /// Seconds spent waiting since the last reset(): communication that backward did not hide.
  double exposed_s() const { return exposed_s_; }
  void reset() { exposed_s_ = exposed_before_s_ = 0; }
  /// Of the step that finish() ended last.
  const StepOutcome& last_step() const { return last_step_; }

 private:
  using Start = std::function<std::unique_ptr<Request>(float*, int64_t)>;
  GradientBuckets(Communicator& communicator, Start start, float* arena, int64_t n, int64_t bucket_elements);
  void start_complete_buckets();
  void check_all_started() const;
  void wait_for(int64_t bucket);
  StepOutcome outcome() const;
  void rearm();

  Communicator& communicator_;
  Start start_;
  float* arena_;
  BucketGrid grid_;
  std::vector<int64_t> missing_;  // of each bucket: elements that are not final yet
  std::vector<std::unique_ptr<Request>> requests_;
  int64_t started_ = 0, done_ = 0;  // buckets 0 ... started_-1 are under way or done, 0 ... done_-1 are done
  int64_t handed_out_ = 0;          // by finish_next()
  double exposed_s_ = 0, exposed_before_s_ = 0;
  StepOutcome last_step_;
};

}  // namespace ditrain::dist
