// Searches for the cache blocks with which matrix products (GEMM) are fastest on this machine. Blocks change speed,
// never a bit. Other sizes are not tuned, because they are constants of an instruction set: register tiles fill the
// registers, and kSumChunk fixes the order of sums.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"
#include "ditrain/kernels/gemm.hpp"

namespace ditrain::bench {

struct TuneBench {
  std::string model = "XL";  ///< S, B, L, XL or a full name of patch 2: whose products
  int64_t batch = 0;         ///< images; 0: ModelShape::batch
};

/// Speedup over the derived blocks that makes other blocks worth writing to a file; less may be noise.
inline constexpr double kWorthTuning = 1.01;

/// Candidate blocks: the derived ones first, then half to twice their rows, in whole register tiles, with 256 to 4,608
/// columns.
std::vector<kernels::GemmBlocking> tuning_candidates(const kernels::GemmBlocking& derived);

/// Times the MLP's products (forward, data gradient and weight gradient; f32 and, where the CPU has it, bf16) with
/// every candidate, then the best candidates again in alternated rounds (Effort::repeats). One row per candidate: its
/// speed relative to the derived blocks, as geometric mean over the products.
/// Returns the fastest, or `derived` if none is faster by more than kWorthTuning.
/// Details   block_rows, block_cols, first (all candidates, one round); for the best ones also again, f32, bf16
/// Errors:   InputError for an unknown model
kernels::GemmBlocking bench_tune(Harness& harness, const TuneBench& bench, const kernels::GemmBlocking& derived);

}  // namespace ditrain::bench
