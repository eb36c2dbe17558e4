// What a rank of a cluster does in a step, for simulations: from the plan of its run and the rates of a platform, or
// from the steps that a run has recorded.
#pragma once
#include <string>

#include "cluster_simulation.hpp"
#include "ditrain/plan/run_plan.hpp"

namespace ditrain::bench {

/// Seconds of a rank that nothing delays.
struct ComputeTimes {
  double compute_s = 0;          ///< forward and backward of all micro-batches
  double last_backward_s = 0;    ///< the part in which buckets leave
  double update_s = 0;           ///< of all weights that the rank updates
  double update_products_s = 0;  ///< the part of update_s that is products, where it is known (Muon)
  double rest_s = 0;             ///< neither of them: loading, noise, facts
};

/// The plan of a run on the cluster, see ScaleBench for the ranks of a strategy. config.train.global_batch and the
/// strategy are set. Errors: InputError as plan_run and config::validate_for_ranks, and for dies over which heads do
/// not divide
plan::RunPlan plan_on_cluster(config::Config config, const plan::ClusterDescription& cluster);

/// Compute: FLOP of the plan by the FLOP/s that the rank's dies reach (`cluster.die`); without sums of dp_tp. Update:
/// 9 passes over parameters in f32 by the bandwidth of the memory of its dies, and the FLOP of its products as those of
/// compute.
ComputeTimes expected_times(const plan::RunPlan& plan, const plan::ClusterDescription& cluster);

/// A run folder: its config and what its steps took.
struct Recording {
  config::Config config;
  ComputeTimes times = {};
  double step_s = 0;
};
/// Medians over the steps but the first.
/// Errors:   InputError for a folder without config or without two steps, and for the run of another build
Recording read_recording(const std::string& folder);
/// Errors:   InputError naming the first key in which `wanted` differs from the recorded config, outside of section
///           dist, which a simulation may change
void expect_same_work(const Recording& recording, const config::Config& wanted, const std::string& folder);

/// Buckets in the order in which backward fills them; backward takes time as the products of its nodes do.
StepSchedule schedule_of(const plan::RunPlan& plan, const ComputeTimes& times, const plan::ClusterDescription& cluster,
                         SumAlgorithm algorithm);

}  // namespace ditrain::bench
