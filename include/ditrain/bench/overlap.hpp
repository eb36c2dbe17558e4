// Whole training steps of several ranks, with and without the sums of gradients between them.
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

/// Collective: a row for each way of making a step, on rank 0's harness. They take turns on one model, step by step;
/// the time of a step is that of the slowest rank, from a barrier on.
///   none        each rank by itself: the same work on the same samples, nothing summed (ranks drift apart, only the
///               time counts)
///   engine      as ditrain sums: beside backward
///   at the end  dist.overlap: false
///   no engine   dist.engine: false (without a simulated link)
///   guarded     engine with a watchdog and a trace
///   checksum    one comparison of the replicas
/// Details   ranks, batch (of a rank), step_ratio: median over the rounds of its time / that of none (guarded: that of
///           engine); communication_s and exposed_s of the median step on rank 0, overlap_efficiency = 1 - exposed /
///           communication; guarded: guards_share, what watchdog, trace and one checksum per dist.verify_every steps
///           (0: every 100) add to a step, as a share of it
/// Cores that --threads leaves free are communication's.
/// Errors:   InputError for a single rank, for dp_tp, for sums that need an engine (dist.shard_optimizer,
///           dist.reproducible), and as bench_steps
void bench_overlap(Harness& harness, dist::Communicator& comm, const OverlapBench& bench);

}  // namespace ditrain::bench
