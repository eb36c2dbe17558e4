// Tensor parallelism: ranks that share one replica (Shoeybi et al., "Megatron-LM"). Of the products of a block a rank
// has the heads and MLP columns that are its own: qkv and fc1 are cut by outputs, proj and fc2 by inputs, so that what
// lies between them (attention, GELU) stays with the rank. What proj and fc2 give in forward, and qkv and fc1 in
// backward, are parts of a sum over the ranks. Everything else (residual stream, conditioning, embedders, final layer)
// each rank does in full, on the same inputs and to the same bits.
#pragma once
#include <cstdint>
#include <functional>

#include "ditrain/tensor/tensor.hpp"

namespace ditrain::nn {

/// One rank among those that share a replica; alone it has all of it.
struct TensorParallel {
  int rank = 0, size = 1;
  /// data[i] becomes the sum over the ranks for i < n, the same bits on each; unused alone. Called by the thread that
  /// drives the pass, in the same order on all ranks.
  std::function<void(float* data, int64_t n)> sum = {};

  bool alone() const { return size == 1; }
  /// t, f32, becomes its sum over the ranks; nothing to do alone.
  void sum_over_ranks(const Tensor& t) const {
    if (!alone()) sum(Pin<float>(t), t.size());
  }
};

}  // namespace ditrain::nn
