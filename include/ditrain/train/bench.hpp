// Benchmarks: timed rows with the peak of the machine measured beside each.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/parallel/team.hpp"

namespace ditrain::train {

struct StepBench {
  std::string model = "DiT-S/2";
  int64_t batch = 8;
  int64_t threads = 0;                  ///< 0: all cores this process may use
  int64_t repeats = 5;                  ///< timed steps after one that warms up
  std::string recompute = "selective";  ///< train.recompute
};

struct BenchRow {
  std::string name, dtype = "f32", recompute;
  int64_t batch = 0;
  double median_s = 0, min_s = 0, max_s = 0;
  double gflops = 0;       ///< 6 x forward MACs x batch / median_s: what is recomputed does not count
  double peak_gflops = 0;  ///< the higher of the FMA loops run right before and after these steps
  double drift = 1;        ///< |before - after| / peak_gflops of those two loops: how unquiet the machine was
  double share = 0;        ///< gflops / peak_gflops, which is the MFU of a step
  double images_per_second = 0;
  size_t peak_rss_bytes = 0;  ///< of the process so far
  size_t kept_bytes_per_image = 0;
  double forward_s = 0, backward_s = 0, optimizer_s = 0;  ///< of the median step
};

struct BenchReport {
  int64_t threads = 1;
  std::vector<BenchRow> rows;
};

/// Times whole training steps (noise, forward, loss, backward, AdamW and EMA) on random data at 32 x 32 x 4, 1,000
/// classes: the shapes of 256 x 256 images in latent space.
/// A row whose FMA loops before and after differ by more than 3 % is measured again, five times at most; the attempt
/// with the least drift is reported, times and peak both from it.
/// Errors:   InputError if it does not fit into memory; RunError for a share above 1.02 (the peak cannot be right)
BenchReport bench_step(const StepBench& bench);

std::string describe(const BenchReport& report);
/// {"host", "commit", "threads", "peak", "rows"}
std::string to_json(const BenchReport& report);

}  // namespace ditrain::train
