// LayerSync (arXiv 2510.12581): the tokens behind one block are drawn towards those behind a later one, which are taken
// as they are. It adds to the loss of a sample
//   - weight mean_t cos(z_from[t,:], z_to[t,:])      z_i: the residual stream [T, C] behind block i
// Both are kept for backward anyway: nothing more is stored, and no product is added.
#pragma once
#include <cstdint>

#include "ditrain/nn/routing.hpp"

namespace ditrain::nn {

struct LayerSync {
  double weight = 0.2;
  int64_t from = 0, to = 0;  ///< blocks, counted from 0
};

/// Errors:   InputError "[train.layer_sync] ..." unless 0 <= from < to < depth, for models of other kinds than dit, and
///           beside routes
void validate(const LayerSync& sync, const ModelConfig& config, const Routes& routes);

}  // namespace ditrain::nn
