// All-reduces gradients while backward still runs. The gradient arena is in the reverse of the order in which gradients
// become final, so buckets are plain slices counted from its end: no copies, no lists of tensors.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ditrain/dist/communicator.hpp"
#include "ditrain/dist/engine.hpp"
#include "ditrain/dist/shards.hpp"

namespace ditrain::dist {

/// The outcome of all buckets of the last finished step.
struct StepOutcome {
  std::optional<double> sum_squares;  ///< over all summed buckets; none without an engine
  double communication_s = 0;         ///< time with a bucket under way, including waits for slow ranks
  double exposed_s = 0;               ///< the part of communication_s in which finish_next() or finish() waited
  double bytes = 0;                   ///< bytes that a rank gave to sums and gathers
  std::vector<ReductionOutcome> buckets = {};  ///< in the order of their starts, from an engine
  double hidden_s() const { return communication_s > exposed_s ? communication_s - exposed_s : 0; }
  void add(const ReductionOutcome& bucket);  ///< one more bucket, started after the others
};

/// The buckets of one gradient arena. Per step, call mark_ready(...) for every slice, or start_all(); then finish().
/// Math:    arena[i] becomes the sum over ranks; the optimiser divides (grad_scale). For a bucket of gather_instead()
///          ranks get each other's parts and compute its gradients themselves
/// Order:   the buckets of BucketGrid start in the order 0, 1, ... on every rank, whatever the order of mark_ready
/// calls
/// Threads: one thread calls it
/// Errors:  LogicFault for slices out of range or marked twice, and for finish() before all slices were marked;
///          RunError naming ranks if a bucket has not arrived within the communicator's timeout
class GradientBuckets {
 public:
  /// The communicator (or the engine) and the arena (grid.n() values) must outlive the buckets.
  GradientBuckets(Communicator& communicator, float* arena, BucketGrid grid);
  GradientBuckets(Engine& engine, float* arena, BucketGrid grid);

  using Slice = parallel::Range;

  /// Makes bucket k all-gathered from the next step on: its first `elements`, a multiple of the world size, are equal
  /// parts in order of rank. Every rank has its own part when the bucket is marked, and all parts when it is finished.
  /// Needs an engine.
  void gather_instead(int64_t k, int64_t elements);
  /// The gradients begin <= i < end are final on this rank. Starts every bucket that is complete now.
  void mark_ready(int64_t begin, int64_t end);
  /// All gradients that were not marked yet are final.
  void start_all();
  /// Waits for the next bucket and returns it once it is summed (or gathered); returns none after the last one. Call it
  /// only after all gradients were marked.
  std::optional<Slice> finish_next();
  /// Returns when every bucket is finished; the next step may begin then.
  void finish();

  int64_t num_buckets() const;
  Slice bucket(int64_t k) const { return grid_[k]; }
  /// The outcome of the step that finish() ended last.
  const StepOutcome& last_step() const { return last_step_; }
  double bytes() const;  ///< bytes of all buckets of a step; 0 with one rank

 private:
  GradientBuckets(Communicator& communicator, Engine* engine, float* arena, BucketGrid grid);
  void start_complete_buckets();
  std::unique_ptr<Request> start(int64_t k);
  void check_all_started() const;
  void wait_for(int64_t bucket);
  StepOutcome outcome() const;
  void rearm();

  Communicator& communicator_;
  Engine* engine_;  // may be none
  float* arena_;
  BucketGrid grid_;
  std::vector<int64_t> gathered_;  // of each bucket: elements that are gathered; 0: all are summed
  std::vector<int64_t> missing_;   // of each bucket: elements that are not final yet
  std::vector<std::unique_ptr<Request>> requests_;
  int64_t started_ = 0, done_ = 0;  // buckets 0 ... started_-1 are under way or done, 0 ... done_-1 are done
  int64_t handed_out_ = 0;          // by finish_next()
  double exposed_s_ = 0;            // of this step
  StepOutcome last_step_;
};

}  // namespace ditrain::dist
