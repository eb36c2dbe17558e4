// One table of functions per instruction set, and the rule that chooses one. Internal to the module and to its tests.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/kernels/attention.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/kernels/gemm.hpp"
#include "ditrain/kernels/loss.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/kernels/random.hpp"
#include "ditrain/kernels/softmax.hpp"
#include "ditrain/platform/cpu.hpp"

namespace ditrain::kernels {

extern GemmBlocking gemm_blocking_in_use;  ///< what gemm_blocking() returns

/// Element-wise kernels on activations of type T; the fields are the public functions of the same names.
template <class T>
struct ActivationKernels {
  void (*gelu_forward)(const T*, T*, int64_t);
  void (*gelu_backward)(const T*, const T*, T*, int64_t);
  int64_t (*find_non_finite)(const T*, int64_t);
  void (*add)(const float*, T*, int64_t);
  void (*column_sums)(const T*, int64_t, float*, int64_t, int64_t);
  void (*layer_norm_apply)(const float*, const float*, const float*, const float*, const float*, T*, int64_t, int64_t);
  void (*gate_residual_forward)(const float*, const float*, const T*, float*, int64_t, int64_t);
  void (*gate_residual_backward)(const float*, const float*, const T*, T*, float*, int64_t, int64_t);
  void (*layer_norm_modulate_forward)(const float*, const float*, const float*, T*, float*, float*, int64_t, int64_t,
                                      float);
  void (*layer_norm_modulate_backward)(const float*, const float*, const float*, const float*, const T*, float*, float*,
                                       float*, int64_t, int64_t);
};

/// The kernels of one instruction set; the fields are the public functions of the same names.
struct KernelTable {
  const char* name;
  int64_t tile_rows, tile_cols;  ///< register tile of gemm and of attention, elements
  int64_t bf16_rows;             ///< those of gemm in bf16 arithmetic; more than tile_rows: a unit of its own

  decltype(&kernels::gemm) gemm;
  decltype(&kernels::gemm_scratch_bytes) gemm_scratch_bytes;
  decltype(&kernels::gemm_shared_bytes) gemm_shared_bytes;
  decltype(&kernels::attention_forward) attention_forward;
  decltype(&kernels::attention_backward) attention_backward;
  decltype(&kernels::attention_scratch_bytes) attention_scratch_bytes;

  void (*exp)(const float* x, float* y, int64_t n);   ///< the exponentials inside the others; for tests
  void (*exp2)(const float* x, float* y, int64_t n);  ///< powers of two, likewise
  ActivationKernels<float> f32;
  ActivationKernels<BFloat16> bf16;
  void (*to_bf16)(const float* x, BFloat16* y, int64_t n);
  void (*to_f32)(const BFloat16* x, float* y, int64_t n);
  decltype(&kernels::layer_norm_statistics) layer_norm_statistics;
  decltype(&kernels::silu_forward) silu_forward;
  decltype(&kernels::silu_backward) silu_backward;
  decltype(&kernels::sum_squares) sum_squares;
  decltype(&kernels::adamw_ema) adamw_ema;
  decltype(&kernels::scale_add) scale_add;
  decltype(&kernels::softmax_forward) softmax_forward;
  decltype(&kernels::softmax_backward) softmax_backward;
  decltype(&kernels::square_error) square_error;
  decltype(&kernels::normal_kl) normal_kl;

  void (*random_bits)(const PhiloxSequence&, uint64_t first, uint32_t* out, int64_t n);  ///< the words; for tests
  void (*random_uniform)(const PhiloxSequence&, uint64_t first, float* out, int64_t n);
  void (*random_normal)(const PhiloxSequence&, uint64_t first, float* out, int64_t n);
  void (*box_muller)(const uint32_t* words, float* normals, int64_t pairs);  ///< of given words; for tests

  double (*fma_burst)(int64_t iterations);       ///< returns the flop done
  double (*fma_burst_bf16)(int64_t iterations);  ///< null: no bf16 multiply-add
  decltype(&kernels::stream_pass) stream_burst;
};

/// An instruction set that this build has kernels for.
struct IsaCandidate {
  const KernelTable* table;
  std::string obstacle;  ///< why this machine cannot run them, e.g. "CPU lacks avx512_bf16"; empty: it can
};
/// Fastest first; the last one ("baseline") always runs.
std::vector<IsaCandidate> isa_candidates(const platform::CpuFeatures& cpu = platform::cpu_features());

struct IsaChoice {
  const KernelTable* table;
  std::string refused;  ///< why better ones were not taken: "avx512: CPU lacks avx512f; avx2: DITRAIN_ISA=scalar"
};
/// wanted: value of DITRAIN_ISA (see dispatch.hpp) or null. An unknown one throws InputError.
IsaChoice choose_isa(const char* wanted);
const IsaChoice& process_isa();                  ///< chosen on first use from the environment, then fixed
std::string report_of(const IsaChoice& choice);  ///< what dispatch_report() says of it

}  // namespace ditrain::kernels
