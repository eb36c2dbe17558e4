// One table of functions per instruction set, and the rule that chooses one. Internal to the module and to its tests.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/kernels/attention.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/kernels/gemm.hpp"

namespace ditrain::kernels {

extern GemmBlocking gemm_blocking_in_use;  ///< what gemm_blocking() returns

/// The kernels of one instruction set; the fields are the public functions of the same names.
struct KernelTable {
  const char* name;
  int64_t tile_rows, tile_cols;  ///< register tile of gemm, elements

  decltype(&kernels::gemm) gemm;
  decltype(&kernels::gemm_scratch_bytes) gemm_scratch_bytes;
  decltype(&kernels::attention_forward) attention_forward;
  decltype(&kernels::attention_backward) attention_backward;
  decltype(&kernels::attention_scratch_bytes) attention_scratch_bytes;

  void (*exp)(const float* x, float* y, int64_t n);  ///< the exponential inside the others; for tests
  decltype(&kernels::gelu_forward) gelu_forward;
  decltype(&kernels::gelu_backward) gelu_backward;
  decltype(&kernels::silu_forward) silu_forward;
  decltype(&kernels::silu_backward) silu_backward;
  decltype(&kernels::add) add;
  decltype(&kernels::scale) scale;
  decltype(&kernels::sum_squares) sum_squares;
  decltype(&kernels::find_non_finite) find_non_finite;
  decltype(&kernels::gate_residual_forward) gate_residual_forward;
  decltype(&kernels::gate_residual_backward_rows) gate_residual_backward_rows;
  decltype(&kernels::gate_residual_backward_columns) gate_residual_backward_columns;
  decltype(&kernels::layer_norm_modulate_forward) layer_norm_modulate_forward;
  decltype(&kernels::layer_norm_modulate_backward_rows) layer_norm_modulate_backward_rows;
  decltype(&kernels::layer_norm_modulate_backward_columns) layer_norm_modulate_backward_columns;
  decltype(&kernels::column_sums) column_sums;
  decltype(&kernels::adamw_ema) adamw_ema;
  decltype(&kernels::scale_add) scale_add;

  double (*fma_burst)(int64_t iterations);         ///< returns the flop done
  float (*read_burst)(const float* p, int64_t n);  ///< reads n floats; the value keeps the loop alive
};

/// An instruction set that this build has kernels for.
struct IsaCandidate {
  const KernelTable* table;
  std::string missing;  ///< CPU features that this machine lacks, e.g. "avx512f"; empty: it can run
};
std::vector<IsaCandidate> isa_candidates();  ///< fastest first; the last one ("baseline") always runs

struct IsaChoice {
  const KernelTable* table;
  std::string refused;  ///< why better ones were not taken: "avx512: CPU lacks avx512f; avx2: DITRAIN_ISA=scalar"
};
/// wanted: value of DITRAIN_ISA (baseline | scalar | avx2 | avx512) or null. An unknown one throws InputError.
IsaChoice choose_isa(const char* wanted);
const IsaChoice& process_isa();  ///< chosen on first use from the environment, then fixed

}  // namespace ditrain::kernels
