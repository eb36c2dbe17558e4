// Table 2 of the paper on this machine: real runs of ditrain that share the same cores in three ways.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"

namespace ditrain::bench {

struct StrategiesBench {
  std::string model = "DiT-S/2";
  int64_t batch = 16;  ///< global
  DType precision = DType::kF32;
  std::vector<std::string> sets = {};  ///< config keys, "a.b=v", as --set of ditrain
  int64_t clusters = 0;                ///< 0: those of the harness; if it has one only, one per thread
  double memory_gib = 0;               ///< limit of all ranks of a run together; 0: none
};

/// A row per strategy: cftp = one process with all clusters, dp and dp_tp = mpirun with one process per cluster. The
/// runs, on drawn data at 32 x 32, take turns: one each for memory, then `repeats` of the harness for time, each of a
/// few steps whose first one does not count.
/// Times     seconds per step, by metrics.jsonl
/// Details   strategy, ranks, clusters (of all ranks), batch, images_per_second, allreduce_exposed_s (median),
///           peak_bytes (the most that the proportional set sizes of all ranks came to together, looked at every 0.1 s
///           in the runs for memory), result: "ok", or "out of memory" where ditrain's plan or the system said so; such
///           a row has no times
/// Peers     of cftp: dp, dp_tp = our images/s / theirs; notes say it with the memory beside it
/// Errors:   InputError for more clusters than threads, for threads, samples, heads or MLP columns that do not divide
///           over the clusters, without ditrain beside this program or mpirun in $PATH, and under mpirun; RunError,
///           with the end of what it said, for a run that fails in another way; RunError after Ctrl-C
void bench_strategies(Harness& harness, const StrategiesBench& bench);

}  // namespace ditrain::bench
