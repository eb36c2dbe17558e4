// Search for the cache blocks of matrix products that are fastest on this machine. They change speed, never a bit. The
// rest are constants of an instruction set: register tiles fill the registers that there are, and kSumChunk fixes the
// order of sums, hence the bits.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"
#include "ditrain/kernels/gemm.hpp"

namespace ditrain::bench {

struct TuneBench {
  std::string model = "XL";  ///< S, B, L, XL or a full name of patch 2: whose products
  int64_t batch = 0;         ///< images; 0: the usual one of the model
};

/// What others have to beat `derived` by; less may be noise.
inline constexpr double kWorthTuning = 1.01;

/// Blocks around the derived ones, which come first: half to twice the rows, in whole register tiles, with 256 to 4,608
/// columns.
std::vector<kernels::GemmBlocking> tuning_candidates(const kernels::GemmBlocking& derived);

/// Times the MLP's products (forward, data and weight gradient; f32 and, where the CPU has them, bf16) with every
/// candidate, then the best ones again in as many alternated rounds as the harness repeats. One row per candidate: how
/// fast it is relative to the derived blocks, the geometric mean over the products.
/// Returns the fastest, or `derived` if nothing is faster by more than kWorthTuning.
/// Details   block_rows, block_cols, first (all candidates, one round), then of the best ones: again, f32, bf16
/// Errors:   InputError for an unknown model
kernels::GemmBlocking bench_tune(Harness& harness, const TuneBench& bench, const kernels::GemmBlocking& derived);

}  // namespace ditrain::bench
