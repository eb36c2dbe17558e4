// Times element-wise operators, the optimiser and attention, compared with their limits (memory bandwidth, FMA peak).
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"

namespace ditrain::bench {

struct OpsBench {
  std::string model = "XL";                       ///< S, B, L or XL: sets the width of the arrays
  std::vector<DType> precisions = {DType::kF32};  ///< of activations; residual stream, statistics and states are f32
  std::vector<int64_t> tokens = {256, 16, 64, 1024, 4096};  ///< for attention, with head widths 64 and 72 each
  int64_t attention_rows = 2048;                            ///< batch x tokens, for attention
};

/// One row per operator, on arrays of images x 256 tokens x width that no cache holds: tanh-GELU, SiLU,
/// LayerNorm(+modulate), gate+residual, q_sample, softmax, normals, loss, AdamW+EMA (with the bf16 copy if precision is
/// bf16), casts, sums.
/// share     time of a loop that reads, writes and updates the same arrays / time of the operator
/// gb_s      counts arrays that are read or written once, arrays that are updated twice
/// Details   rows, cols (of the arrays)
/// Then attention forward (4 T T D flop per head) and backward (8 T T D): share of the FMA peak of the precision.
/// Details   tokens, head_dim, heads, batch
/// Each precision has these rows; operators without activations, such as normals and casts, appear for f32 only.
void bench_ops(Harness& harness, const OpsBench& bench);

}  // namespace ditrain::bench
