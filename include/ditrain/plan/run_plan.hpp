// What is decided before a run begins, besides its placement: shares of samples, the cut over clusters, gradients and
// memory. Made once; the refusal, the start report and the steps of a run, and the steps of benches, read this plan.
// The dry run calls the same functions one by one.
//
//   const Placement placement = plan_placement(config, comm);
//   const RunPlan plan = plan_run(config, comm.world_size(), placement.plan.cluster_sizes);
//   check_memory(plan.memory, config, comm.world_size(), comm.local_size());
#pragma once
#include "ditrain/config/config.hpp"
#include "ditrain/plan/cut.hpp"
#include "ditrain/plan/gradient_plan.hpp"
#include "ditrain/plan/memory_plan.hpp"
#include "ditrain/plan/placement.hpp"

namespace ditrain::plan {

struct RunPlan {
  config::Config config;  ///< a copy, with parallel.tensor_ranks settled
  int world_size = 1;
  int replicas = 1;         ///< ranks with samples of their own
  int64_t samples = 1;      ///< of the global batch that one of them has
  int64_t micro_batch = 1;  ///< of these at once
  CutPlan cut = {};
  GradientPlan gradients = {};
  MemoryPlan memory = {};
};

/// config: with tensor_ranks settled (with_tensor_ranks) and checked for the ranks (config::validate_for_ranks).
/// cluster_sizes: workers of each cluster of a rank; bandwidth: as measured between their domains, see plan_cut.
/// Errors:   InputError as plan_cut
RunPlan plan_run(const config::Config& config, int world_size, const std::vector<int>& cluster_sizes,
                 const DomainBandwidth& bandwidth = {});

}  // namespace ditrain::plan
