// Measures memory tiers: their bandwidth and latency, and how much slower training is when the fast tier is too small
// for all tensors.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"

namespace ditrain::bench {

struct MemoryBench {
  std::string model = "DiT-S/2";
  int64_t batch = 8;
  DType precision = DType::kF32;
  std::vector<double> fast_shares = {0.4, 0.25};  ///< capacities, as shares of the bytes that memory.automem: off
                                                  ///< uses; empty: no steps
  std::vector<std::string> sets = {};             ///< config keys, as --set of ditrain
  bool once = false;                              ///< one step per row
};

/// Measures each tier on the memory nodes where a run at `place` has it: reads and writes of the team in the fast tier
/// (GB/s; latency_s of a load that depends on the previous one), and copies between it and each slow tier (GB/s of
/// large copies, latency_s of one block). Notes list the pages and the nodes of each tier.
/// Errors:   as memory::make_disk; RunError for a copy that fails
void bench_tiers(Harness& harness, const config::MemoryConfig& config, const plan::RankPlace& place,
                 const std::string& disk_folder);

/// Runs bench_tiers, then times steps with memory.automem off, paper and planned in turn, for each capacity of the fast
/// tier.
/// Details   automem, fast_gib, fast_share, step_ratio (median of seconds / those of off in the same round),
///           stall_share (time in which any cluster waits for tensors / step), fast_peak_bytes (the most bytes in the
///           fast tier at one time, counted by its allocators; off: all tensors), predicted_s, in_bytes and out_bytes
///           per step, in_gb_s and out_gb_s of the link while it was busy
/// Errors:   InputError for a config that cannot run, and for a capacity that a node does not fit
void bench_memory(Harness& harness, const MemoryBench& bench);

}  // namespace ditrain::bench
