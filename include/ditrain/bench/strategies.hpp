// Table 2 of the paper on this machine: real runs of ditrain on the same cores with three parallel strategies.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"

namespace ditrain::bench {

struct StrategiesBench {
  std::string model = "DiT-S/2";
  int64_t batch = 16;  ///< global batch, in images
  DType precision = DType::kF32;
  std::vector<std::string> sets = {};  ///< config keys, "a.b=v", as --set of ditrain
  int64_t clusters = 0;                ///< 0: as the harness; if it has only one cluster, one per thread
  double memory_gib = 0;               ///< limit for all ranks of a run together, in GiB; 0: none
};

/// One row per strategy: cftp = one process with all clusters, dp and dp_tp = mpirun with one process per cluster. The
/// runs, on synthetic data of 32 x 32, take turns: one each to measure memory, then `repeats` of the harness to measure
/// time. Each has a few steps; the first does not count.
/// Times     seconds per step, from metrics.jsonl
/// Details   strategy, ranks, clusters (over all ranks), batch, images_per_second, allreduce_exposed_s (median),
///           peak_bytes (largest sum of the proportional set sizes of all ranks, sampled every 0.1 s in the runs for
///           memory), result: "ok", or "out of memory" if ditrain's plan or the system said so; such a row has no times
/// Peers     of the row cftp: dp, dp_tp = images/s of cftp / theirs; notes repeat it with the memory
/// Errors:   InputError for more clusters than threads, for threads, samples, heads or MLP columns that do not divide
///           over the clusters, if ditrain is not beside this program or mpirun not in $PATH, and under mpirun;
///           RunError, with the end of its output, for a run that fails in another way; RunError after Ctrl-C
void bench_strategies(Harness& harness, const StrategiesBench& bench);

}  // namespace ditrain::bench
