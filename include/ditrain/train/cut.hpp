// What is cut over the clusters of a rank (parallel.cut).
#pragma once
#include <string>

#include "ditrain/ops/context.hpp"
#include "ditrain/train/config.hpp"

namespace ditrain::train {

struct CutPlan {
  ops::Cut cut = ops::Cut::kSamples;
  std::string why;  ///< one line for the start report
};

/// For parallel.cut: auto, the cut that moves fewer bytes between clusters: of a block of width C on M = B T rows, c
/// clusters that take samples each read all 12 C^2 weights, clusters that take columns each read all 7 M C inputs of
/// products and 1 / c of the weights; samples only where every cluster gets as many. Either way 1 / c of what all read
/// is a cluster's own and lies in its domain, the rest in others: the bandwidths of domains are common factors.
/// Errors:   InputError for samples that do not divide
CutPlan plan_cut(const Config& config, int64_t micro_batch, int clusters);

}  // namespace ditrain::train
