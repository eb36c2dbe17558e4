// Adds the gradients of a rank's micro-batches along a binary tree (dist.reproducible) instead of one after the other.
// Each micro-batch is a leaf: it writes its own gradient into the arena, and is added to sums of earlier leaves as soon
// as they are its siblings in the tree. Each pending level of the tree takes one more gradient arena.
#pragma once
#include <vector>

#include "ditrain/dist/sums.hpp"
#include "ditrain/train/sync_policy.hpp"

namespace ditrain::train {

class LeafSums final : public SyncPolicy {
 public:
  /// Allocates the pending levels. `grads`: the gradient arena, which must outlive this object.
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
