// Dense matrix products on raw pointers, one thread's share. `ops` cuts a product over the team; the sum of every
// element has an order that depends on k alone, so any cut gives the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ditrain::kernels {

enum class Trans { kNo, kYes };

/// c[m,n] = (accumulate ? c : 0) + op(a)[m,k] op(b)[k,n] + bias[n]
/// Shapes:   a is [m,k] with row stride lda, or [k,m] if trans_a; b is [k,n] with ldb, or [n,k] if trans_b; c [m,n],
/// ldc
struct GemmArgs {
  int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  int64_t lda = 0;
  Trans trans_a = Trans::kNo;
  const float* b = nullptr;
  int64_t ldb = 0;
  Trans trans_b = Trans::kNo;
  float* c = nullptr;
  int64_t ldc = 0;
  bool accumulate = false;
  const float* bias = nullptr;  ///< added once to every row; null: none
};

/// Every f32 sum runs over k in chunks of this length: each chunk is one chain of fused multiply-adds from zero
/// (multiply, then add on baseline x86, which has no fused one); the old c, if accumulated, comes first, then the chunk
/// sums in increasing order, the bias last.
inline constexpr int64_t kSumChunk = 512;

/// Memory: no allocation; `scratch` holds gemm_scratch_bytes(m, n, k), 64-byte aligned. c aliases nothing.
void gemm(const GemmArgs& args, void* scratch);
size_t gemm_scratch_bytes(int64_t m, int64_t n, int64_t k);

namespace ref {
void gemm(const GemmArgs& args);  ///< plain loops, f64 accumulation
}
}  // namespace ditrain::kernels
