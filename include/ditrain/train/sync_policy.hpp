// The interface of policies that take part in the way from gradients to new weights. GradientSync calls all of its
// policies in a fixed order; each does its own part and does not depend on the others.
//
//   backward of a micro-batch -> ready(slice) ... -> bucket of all ranks -> arrived(k) -> update(first, last)
//     -> finish()
#pragma once
#include "ditrain/dist/gradient_buckets.hpp"
#include "ditrain/ops/context.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "ditrain/train/metrics.hpp"

namespace ditrain::train {

/// A micro-batch: samples of a step that pass through the model together.
struct MicroBatchPlace {
  int64_t number = 0;        ///< number among this rank's micro-batches, from 0
  int64_t first_sample = 0;  ///< number of its first sample in the global batch
  bool last = true;          ///< whether it is this rank's last one of the step
};

class SyncPolicy {
 public:
  virtual ~SyncPolicy() = default;
  /// The gradients of this slice of the arena are final for the micro-batch.
  virtual void ready(const MicroBatchPlace&, const parallel::Range& /*slice*/) {}
  /// Bucket k has arrived: it holds the sum, or the parts, of all ranks. Time is added to `log`.
  virtual void arrived(int64_t /*k*/, PhaseLog& /*log*/) {}
  /// Changes the weights of buckets first ... last-1 whose gradients are final.
  virtual void update(int64_t /*first*/, int64_t /*last*/, const optim::StepSettings&) {}
  /// All buckets have been updated: returns when their new weights have arrived, and adds that communication to `step`.
  virtual void finish(dist::StepOutcome& /*step*/) {}
};

/// Sum of squares of gradients, added piece by piece as the engine does; bit-identical to its result.
double squares_of(ops::Context& ctx, const float* grads, const parallel::Range& slice);

}  // namespace ditrain::train
