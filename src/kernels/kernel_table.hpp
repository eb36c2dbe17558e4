// The functions that an instruction set has for products and attention: one table per family of kernels. Included by
// code that is compiled for each of them: types and constants only. Which tables there are, and which of them a process
// uses: instruction_sets.hpp.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ditrain/kernels/attention.hpp"
#include "ditrain/kernels/gemm.hpp"

namespace ditrain::kernels {

extern GemmBlocking gemm_blocking_in_use;  ///< what gemm_blocking() returns

/// Products in one arithmetic (GemmArgs::arithmetic).
struct ProductKernels {
  const char* name;              ///< of the instruction set
  int64_t tile_rows, tile_cols;  ///< register tile, elements
  bool fused_multiply_add;       ///< a * b + c rounds once
  bool on_matrix_unit;           ///< a unit with tiles of its own, as AMX and SME have
  bool sums_in_blocks;           ///< bf16: in blocks of 32 steps, see kSumChunk
  int64_t steps_per_word;        ///< of packed operands: 2 where a 32-bit word holds two bf16 steps
  decltype(&kernels::gemm) gemm;
  decltype(&kernels::gemm_scratch_bytes) scratch_bytes;
  decltype(&kernels::gemm_shared_bytes) shared_bytes;
  decltype(&kernels::gemm_pieces) pieces;
  decltype(&kernels::is_better_normalised_before) is_better_normalised_before;
  decltype(&kernels::pack_b) pack_b;
  double (*fma_burst)(int64_t iterations);  ///< loop behind the peak, returns the flop done; null: no such instruction
};

/// Attention of tensors in f32, in bf16, or in both.
struct AttentionKernels {
  const char* name;
  int64_t tile_rows, tile_cols;
  decltype(&kernels::attention_forward) forward;
  decltype(&kernels::attention_backward) backward;
  size_t (*scratch_bytes)(int64_t tokens, int64_t head_dim);
  size_t (*forward_scratch_bytes)(int64_t tokens, int64_t head_dim);
};

}  // namespace ditrain::kernels
