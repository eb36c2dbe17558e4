// LayerSync (arXiv 2510.12581): a loss that aligns the tokens behind one block with those behind a later block, through
// which no gradient flows. It adds to the loss of a sample
//   - weight mean_t cos(z_from[t,:], z_to[t,:])      z_i: the residual stream [T, C] behind block i
// Both are stored for backward anyway, so it needs no more memory and no GEMM.
#pragma once
#include <cstdint>

#include "ditrain/nn/routing.hpp"

namespace ditrain::nn {

struct LayerSync {
  double weight = 0.2;
  int64_t from = 0, to = 0;  ///< blocks, counted from 0
};

/// Errors:   InputError "[train.layer_sync] ..." unless 0 <= from < to < depth, for model kinds other than dit, and
///           together with routes
void validate(const LayerSync& sync, const ModelConfig& config, const Routes& routes);

}  // namespace ditrain::nn
