// Table 2 of the paper on this machine: real runs of ditrain on the same cores with three parallel strategies.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"
#include "ditrain/config/config.hpp"

namespace ditrain::bench {

struct StrategiesBench {
  std::string model = "DiT-S/2";
  int64_t batch = 16;  ///< global batch, in images
  DType precision = DType::kF32;
  std::vector<std::string> sets = {};  ///< config keys, "a.b=v", as --set of ditrain
  int64_t clusters = 0;                ///< 0: see clusters_that_divide
  double memory_gib = 0;               ///< limit for all ranks of a run together, in GiB; 0: none
};

struct ThreadsInClusters {
  int threads = 1, clusters = 1;
};
/// Clusters with which all strategies can run: the largest divisor of `natural` clusters (of the threads if that is 1)
/// which divides threads, heads, MLP columns and batch of the config; where only 1 does, one of the threads; where only
/// 1 of those does, one of one thread fewer.
ThreadsInClusters clusters_that_divide(int threads, int natural, const config::Config& config);

/// One row per strategy: cftp = one process with all clusters, dp and dp_tp = mpirun with one process per cluster. The
/// runs, on synthetic data of 32 x 32, take turns: one each to measure memory, then `repeats` of the harness to measure
/// time. Each has a few steps; the first does not count.
/// Times     seconds per step, from metrics.jsonl
/// Details   strategy, ranks, clusters (over all ranks), batch, images_per_second, allreduce_exposed_s (median),
///           peak_bytes (largest sum of the proportional set sizes of all ranks, sampled every 0.1 s in the runs for
///           memory), result: "ok", or "out of memory" if ditrain's plan or the system said so; such a row has no times
/// Peers     of the row cftp: dp, dp_tp = images/s of cftp / theirs; notes repeat it with the memory
/// Errors:   InputError for more clusters than threads, for threads, samples, heads or MLP columns that do not divide
///           over the given clusters, for sets of keys that the bench decides itself, if ditrain is not beside this
///           program or mpirun not in $PATH, and under mpirun; RunError, with the end of its output, for a run that
///           fails in another way, and after a signal
void bench_strategies(Harness& harness, const StrategiesBench& bench);

}  // namespace ditrain::bench
