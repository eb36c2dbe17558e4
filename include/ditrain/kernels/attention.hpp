// Attention of one head without a T x T array: tiles of scores, online softmax, and log-sum-exp stored for backward,
// which recomputes the scores (as in FlashAttention).
#pragma once
#include <cstddef>
#include <cstdint>

#include "ditrain/base/dtype.hpp"

namespace ditrain::kernels {

/// Largest head_dim: a score is one chain of head_dim multiply-adds, which must not exceed a chunk of a sum
/// (kSumChunk).
inline constexpr int64_t kMostHeadDim = 512;

/// One head of one sample; tokens >= 1, head_dim from 1 to kMostHeadDim. Row t of q starts at q + t * qkv_stride and
/// has `head_dim` contiguous elements; k and v likewise (in the qkv projection [T, 3, H, D], qkv_stride = 3 H D). Row t
/// of out starts at out + t * out_stride, dout likewise. Strides are in elements.
struct AttentionHead {
  int64_t tokens = 0, head_dim = 0;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  int64_t qkv_stride = 0, out_stride = 0;
  float scale = 0;  ///< 1 / sqrt(head_dim); positive
  /// Type of q, k, v, out and their gradients, f32 or bf16. lse and all sums are f32. With bf16 the probabilities and
  /// the gradients of the scores are rounded to bf16 where the CPU multiplies bf16 pairs.
  DType type = DType::kF32;
  /// Elements from this head's q, k and v to those of the head that the thread takes next, so that its k and v can be
  /// prefetched into the cache; 0: none.
  int64_t next = 0;
  /// Forward: this call computes the queries [first_query, end_query); an end of 0 means all. out and lse still point
  /// to the rows of query 0. Calls for parts of the queries give the same bits as one call for all.
  int64_t first_query = 0, end_query = 0;
};

/// Computes one head.
/// Math:     out[t,:] = sum_s p[t,s] v[s,:],  p[t,:] = softmax(scale q[t,:] k^T)
///           lse[t] = log sum_s exp(scale q[t,:] . k[s,:]), written for backward
void attention_forward(const AttentionHead& head, void* out, float* lse, void* scratch);
/// Computes the gradients of one head from `out` and `lse` of the forward pass.
/// Grads:    dq, dk, dv (row stride qkv_stride) are overwritten
void attention_backward(const AttentionHead& head, const void* out, const void* dout, const float* lse, void* dq,
                        void* dk, void* dv, void* scratch);
/// Bytes of `scratch` for heads of a type, enough for either direction; it must be 64-byte aligned and need not be
/// cleared.
size_t attention_scratch_bytes(int64_t tokens, int64_t head_dim, DType type);
size_t attention_forward_scratch_bytes(int64_t tokens, int64_t head_dim, DType type);  ///< the same for forward alone

namespace ref {  // f32 only
void attention_forward(const AttentionHead& head, float* out, float* lse);
void attention_backward(const AttentionHead& head, const float* out, const float* dout, const float* lse, float* dq,
                        float* dk, float* dv);
}  // namespace ref
}  // namespace ditrain::kernels
