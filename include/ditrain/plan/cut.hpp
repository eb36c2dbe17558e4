// How work is split over the thread clusters of a rank (parallel.cut).
#pragma once
#include <string>
#include <vector>

#include "ditrain/config/config.hpp"
#include "ditrain/ops/context.hpp"
#include "ditrain/platform/topology.hpp"

namespace ditrain::plan {

struct CutPlan {
  ops::ClusterSplit cut = ops::ClusterSplit::kSamples;
  std::string why = {};  ///< one line for the start report
};

/// Read bandwidth of a cluster [GB/s] from memory of its own NUMA domain and of another; 0: not measured, counts as
/// equal.
struct DomainBandwidth {
  double own = 0, other = 0;
};
/// Four times the L3 caches of a domain, so that they do not hold it; at least 64 MiB, at most 1 GiB and a 32nd of the
/// memory.
size_t bytes_to_measure(const platform::Topology& machine, size_t memory_bytes);
/// Measures how fast the first cluster reads an array of that size that it wrote itself, and one that the last cluster
/// wrote. Measures nothing if the team has one cluster.
DomainBandwidth measure_domains(ops::Context& ctx);

/// Chooses the split. cluster_sizes: workers of each cluster. parallel.cut: auto takes the split with which a cluster
/// waits less for memory in a block's forward pass. In a block of width C on M = B T rows, each of c clusters reads,
/// with
///   samples   all W = 12 C^2 weights and 1 / c of the I = 7 M C inputs of GEMMs, which it wrote itself. Allowed only
///             if every cluster gets equally many samples and at most 5 % of the workers wait for a smaller cluster
///   n         1 / c of the weights, and all inputs
/// Weights, and inputs that all clusters wrote, are spread over the domains: 1 / c of them is in the cluster's own.
/// Errors:   InputError if the samples do not divide by the clusters
CutPlan plan_cut(const config::Config& config, int64_t micro_batch, const std::vector<int>& cluster_sizes,
                 const DomainBandwidth& bandwidth = {});

}  // namespace ditrain::plan
