// Memory tiers: their bandwidth and latency, and what training costs in a fast tier that is too small for all.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"
#include "ditrain/nn/model_config.hpp"

namespace ditrain::bench {

struct MemoryBench {
  std::string model = "DiT-S/2";
  int64_t batch = 8;
  DType precision = DType::kF32;
  std::vector<double> fast_shares = {0.4, 0.25};  ///< capacities, as shares of what memory.automem: off uses;
                                                  ///< none: no steps
  std::vector<std::string> sets = {};             ///< config keys, as --set of ditrain
  bool once = false;                              ///< one step of each
};

/// The first layer of the model's MLP, and AdamW over the weights of two of its blocks, on plain, transparent and
/// explicit huge pages in turns.
/// Details   pages (what was had), speed_to_plain (median of the ratios in the same round)
void bench_pages(Harness& harness, const nn::ModelConfig& model, int64_t batch);

/// Each tier, where a run at that place has it: reading and writing of the team in the fast one (GB/s; latency_s of a
/// load that depends on the one before), copies between that and each slow one (GB/s of large ones, latency_s of one
/// block). Notes tell the pages and the nodes of each.
/// Errors:   as memory::make_disk; RunError for a copy that fails
void bench_tiers(Harness& harness, const config::MemoryConfig& config, const plan::RankPlace& place,
                 const std::string& disk_folder);

/// bench_pages, bench_tiers, then steps with memory.automem off, paper and planned in turn, in tiers of each capacity.
/// Details   automem, fast_gib, fast_share, step_ratio (median of seconds / those of off in the same round),
///           stall_share (time in which any cluster waits for tensors / step), fast_peak_bytes (the most that lay in
///           the fast tier at one time, as counted by its allocators; off: all tensors), allocations (of tensors),
///           mappings (of pages) and page_faults of the last step, predicted_s, in_bytes and out_bytes per step,
///           in_gb_s and out_gb_s of the link while it was busy
/// Errors:   InputError for a config that cannot run, and for a capacity that a node does not fit
void bench_memory(Harness& harness, const MemoryBench& bench);

}  // namespace ditrain::bench
