// Compares training steps on one core with steps on clusters of cores (one thread group per NUMA domain).
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

/// Three rows that take turns on one model, step by step: one core; all threads of the harness in its clusters with
/// parallel.cut: auto; the same with parallel.cut: n.
/// Details   threads, clusters, cut (what `auto` chose), batch, images_per_second, efficiency: median over the rounds
///           of one core's time / (threads x the row's time); where the time of the median step went (as in CallTimes),
///           team_barriers_per_block, cluster_barriers_per_block
/// Notes     median ratio of auto to n; the memory bandwidth of one core and of all cores, in GB/s
/// Errors:   InputError for a single cluster, and as bench_steps
void bench_clusters(Harness& harness, const ClustersBench& bench);

}  // namespace ditrain::bench
