// The gradients of a rank's micro-batches, added along a binary tree (dist.reproducible) rather than into one sum: each
// micro-batch, a leaf, writes its own gradient into the arena, and joins sums of earlier ones as soon as the tree has
// them as its siblings. A pending level of the tree takes one more gradient arena.
#pragma once
#include <vector>

#include "ditrain/autograd/parameters.hpp"
#include "ditrain/dist/sums.hpp"
#include "ditrain/ops/context.hpp"

namespace ditrain::train {

class LeafSums {
 public:
  /// Declares; allocate() allocates.
  LeafSums(int64_t leaves, int64_t arena_elements) : tree_(leaves), elements_(arena_elements) {}
  void allocate();
  size_t bytes() const { return size_t(tree_.most_waiting()) * size_t(elements_) * sizeof(float); }
  int levels() const { return tree_.most_waiting(); }

  /// The gradients of a slice are those of leaf `leaf` (0, 1, ...), final. Once it is the last leaf's turn, `grads`
  /// holds the sum of all there.
  /// Threads:  cuts the slice by elements
  void add(ops::Context& ctx, int64_t leaf, const Tensor& grads, const autograd::ArenaSlice& slice);

 private:
  dist::SumTree tree_;
  int64_t elements_;
  std::vector<Tensor> waiting_;  // the oldest first
};

}  // namespace ditrain::train
