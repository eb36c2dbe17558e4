// Element-wise operators, optimiser and attention beside what limits them.
#pragma once
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"

namespace ditrain::bench {

struct OpsBench {
  std::string model = "XL";                       ///< S, B, L or XL: the width of the arrays
  std::vector<DType> precisions = {DType::kF32};  ///< of activations; residual stream, statistics and states are f32
  std::vector<int64_t> tokens = {256, 16, 64, 1024, 4096};  ///< of the attention rows, head widths 64 and 72 each
  int64_t attention_rows = 2048;                            ///< batch x tokens of them
};

/// A row for every operator on arrays of images x 256 tokens x width that no cache holds: tanh-GELU, SiLU,
/// LayerNorm(+modulate), gate+residual, q_sample, softmax, normals, loss, AdamW+EMA (with the bf16 copy if precision is
/// bf16), casts, sums.
/// share     the time of a loop that reads, writes and updates the same arrays / that of the operator
/// gb_s      counts what the operator has to move: once for what is read or written, twice for what is updated
/// Details   rows, cols (of the arrays)
/// Then attention forward (4 T T D flop per head) and backward (8 T T D): share of the FMA peak of the precision.
/// Details   tokens, head_dim, heads, batch
/// Each precision has these rows; operators without activations, such as normals and casts, are in those of f32.
void bench_ops(Harness& harness, const OpsBench& bench);

}  // namespace ditrain::bench
