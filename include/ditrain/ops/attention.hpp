// Multi-head self-attention on the fused qkv projection. Legend: B batch, T tokens, H heads, D head width. The B H
// heads of a batch are split over workers; with fewer heads than workers, forward also splits the queries of each head.
#pragma once
#include <vector>

#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// Normalisation of queries and keys over the width of a head, before the attention: scales and shifts, f32 [D], one
/// set for all heads. Without weights there is no normalisation; without biases it is RMSNorm with eps 1e-6, else
/// LayerNorm with eps 1e-5, as in the public models.
struct HeadNorm {
  Tensor q_weight = {}, q_bias = {}, k_weight = {}, k_bias = {};
  bool exists() const { return q_weight.defined(); }
  /// The defined terms, in this order.
  std::vector<Tensor> terms() const;
};

/// 2-D rotary embedding (RoPE) of queries and keys, after their norm, as in LightningDiT. D must be a multiple of 4. In
/// the first half of a head the pairs of neighbours (2j, 2j+1) are rotated by the angle row f_j, in the second half by
/// column f_j, with f_j = 10000^(-4j / D): (a, b) becomes (a cos - b sin, b cos + a sin). Tokens go row by row.
struct Rotation {
  int64_t grid_height = 0, grid_width = 0;  ///< 0: no rotation
  /// [B, T]: the place of each token in the grid; null: the tokens are the whole grid, in order.
  const int64_t* places = nullptr;
  bool exists() const { return grid_height > 0; }
};

/// Math:     out[b,t,h,:] = sum_s softmax_s(q[b,t,h,:] . k[b,s,h,:] / sqrt(D)) v[b,s,h,:]
/// Types:    qkv, out and their gradients all f32 or all bf16; lse f32
/// Shapes:   qkv [B, T, 3 H D] (q | k | v, each [H, D]), D from 1 to 512; out [B, T, H D]; lse [B, H, T],
///           log-sum-exp kept for backward
/// Numerics: normalised and rotated q and k of a head exist only while it is computed, in the type of qkv (each step
///           rounds to it); backward makes them again, bit-identically, so nothing is stored for it
/// Errors:   ShapeError "[attention_forward] ..."
void attention_forward(Context& ctx, const Tensor& qkv, int64_t num_heads, const Tensor& out, const Tensor& lse,
                       const HeadNorm& norm = {}, const Rotation& rotation = {});
/// Grads:    dqkv [B, T, 3 H D], overwritten; with a norm also dterms [B, H, terms, D] f32: for each sample and head
///           the gradients of norm.terms()
void attention_backward(Context& ctx, const Tensor& qkv, int64_t num_heads, const Tensor& out, const Tensor& lse,
                        const Tensor& dout, const Tensor& dqkv, const HeadNorm& norm = {}, const Tensor& dterms = {},
                        const Rotation& rotation = {});

/// sums [terms, D] = sum of dterms over samples and heads, in their order.
void sum_over_heads(Context& ctx, const Tensor& dterms, const Tensor& sums);
/// Writes the rows of `sums` to the gradients of norm.terms(), or adds them. Do not call it inside a job.
void set_gradients(Context& ctx, const Tensor& sums, const HeadNorm& gradients, bool accumulate);

}  // namespace ditrain::ops
