// Tensor parallelism: ranks that share one replica (Shoeybi et al., "Megatron-LM"). Each rank has its own heads and MLP
// columns of a block's GEMMs: qkv and fc1 are split by outputs, proj and fc2 by inputs, so that attention and GELU
// between them stay on the rank. The results of proj and fc2 in forward, and of qkv and fc1 in backward, are addends of
// a sum over the ranks. Each rank computes everything else (residual stream, conditioning, embedders, final layer) in
// full, on the same inputs and bit-identically.
#pragma once
#include <cstdint>
#include <functional>

#include "ditrain/tensor/tensor.hpp"

namespace ditrain::nn {

/// This rank's place among the ranks that share a replica; size 1: it has the whole replica.
struct TensorParallel {
  int rank = 0, size = 1;
  /// data[i] becomes the sum over the ranks for i < n, bit-identical on each; not called on a single rank. Called by
  /// the thread that drives the pass, in the same order on all ranks.
  std::function<void(float* data, int64_t n)> sum = {};

  bool alone() const { return size == 1; }
  /// t, f32, becomes its sum over the ranks; does nothing on a single rank.
  void sum_over_ranks(const Tensor& t) const {
    if (!alone()) sum(Pin<float>(t), t.size());
  }
};

}  // namespace ditrain::nn
