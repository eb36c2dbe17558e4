// The gradients of a rank's micro-batches, added along a binary tree (dist.reproducible) rather than into one sum: each
// micro-batch, a leaf, writes its own gradient into the arena, and joins sums of earlier ones as soon as the tree has
// them as its siblings. A pending level of the tree takes one more gradient arena.
#pragma once
#include <vector>

#include "ditrain/dist/sums.hpp"
#include "ditrain/train/sync_policy.hpp"

namespace ditrain::train {

class LeafSums final : public SyncPolicy {
 public:
  /// Allocates. `grads`: the gradient arena, which must outlive this.
  LeafSums(int64_t leaves, const Tensor& grads, ops::Context& ctx);

  /// The gradients of this slice are final for leaf micro.number. After the last leaf the slice holds the sum of all.
  /// Threads:  splits the slice by elements
  void ready(const MicroBatchPlace& micro, const parallel::Range& slice) override;

 private:
  dist::SumTree tree_;
  const Tensor grads_;
  ops::Context& ctx_;
  std::vector<Tensor> waiting_;  // the oldest first
};

}  // namespace ditrain::train
