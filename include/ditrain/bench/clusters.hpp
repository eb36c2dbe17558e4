// Whole training steps of one core and of clusters of cores, in turns.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"

namespace ditrain::bench {

struct ClustersBench {
  std::string model = "DiT-S/2";
  int64_t batch = 16;
  DType precision = DType::kF32;
  std::vector<std::string> sets = {};  ///< config keys, "a.b=v"
};

/// One core, then all threads of the harness as its clusters, cut by parallel.cut: auto and by n. They take turns on
/// one model, step by step.
/// Details   threads, clusters, cut (what it came to), batch, images_per_second, efficiency: median over the rounds of
///           the time of one core / (threads x its time); where the time of the median step went (as in CallTimes),
///           team_barriers_per_block, cluster_barriers_per_block
/// Notes     the ratio of auto to n, likewise; what one core and all of them read from memory, in GB/s
/// Errors:   InputError for a single cluster, and as bench_steps
void bench_clusters(Harness& harness, const ClustersBench& bench);

}  // namespace ditrain::bench
