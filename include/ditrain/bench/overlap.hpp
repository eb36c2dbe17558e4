// Times training steps of several ranks with and without the all-reduce of gradients: how much communication backward
// hides.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"
#include "ditrain/dist/communicator.hpp"

namespace ditrain::bench {

struct OverlapBench {
  std::string model = "DiT-B/2";
  int64_t batch = 8;  ///< images per rank
  DType precision = DType::kF32;
  std::vector<std::string> sets = {};  ///< config keys, "a.b=v"; dist.simulate_link above all
};

/// One row per way to run a step, on rank 0's harness. Collective. The ways take turns on one model, step by step; the
/// time of a step is that of the slowest rank, from a barrier on.
///   none        each rank alone: the same work on the same samples without an all-reduce (the weights of the ranks
///               diverge; only the time counts)
///   engine      as in training: all-reduce during backward
///   at the end  dist.overlap: false
///   no engine   dist.engine: false (without a simulated link)
/// Details   ranks, batch (per rank), step_ratio: median over the rounds of the row's time / the time of none;
///           communication_s and exposed_s of the median step on rank 0, overlap_efficiency = 1 - exposed /
///           communication
/// Cores that --threads leaves free are used for communication.
/// Errors:   InputError for a single rank, for dp_tp, for sums that need an engine (dist.shard_optimizer,
///           dist.reproducible), and as bench_steps
void bench_overlap(Harness& harness, dist::Communicator& comm, const OverlapBench& bench);

}  // namespace ditrain::bench
