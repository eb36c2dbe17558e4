// What is cut over the clusters of a rank (parallel.cut).
#pragma once
#include <string>
#include <vector>

#include "ditrain/config/config.hpp"
#include "ditrain/ops/context.hpp"

namespace ditrain::plan {

struct CutPlan {
  ops::Cut cut = ops::Cut::kSamples;
  std::string why = {};  ///< one line for the start report
};

/// Bytes per second [GB/s] that a cluster reads from memory of its own domain and of another one's; 0: not measured, as
/// fast.
struct DomainBandwidth {
  double own = 0, other = 0;
};
/// Read loops of the first cluster over 64 MiB that it wrote itself and over as many that the last one wrote. Nothing
/// is measured if the team has one cluster.
DomainBandwidth measure_domains(ops::Context& ctx);

/// cluster_sizes: workers of each cluster. For parallel.cut: auto, the cut with which a cluster waits less for memory
/// in a block's forward pass. Of a block of width C on M = B T rows, each of c clusters reads, with
///   samples   all W = 12 C^2 weights and 1 / c of the I = 7 M C inputs of products, which it wrote itself; only where
///             every cluster gets as many samples, and no more than 5 % of the workers would wait for smaller ones
///   n         1 / c of the weights, and all inputs
/// Weights, and inputs that others wrote too, lie in all domains: 1 / c of them in its own.
/// Errors:   InputError for samples that do not divide
CutPlan plan_cut(const config::Config& config, int64_t micro_batch, const std::vector<int>& cluster_sizes,
                 const DomainBandwidth& bandwidth = {});

}  // namespace ditrain::plan
