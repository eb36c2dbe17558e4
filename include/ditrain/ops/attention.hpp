// Multi-head self-attention on the fused projection. Legend: B batch, T tokens, H heads, D head width. Workers share
// out the B H heads of a batch: beyond B H workers some rest, which a few images sampled on a large node may meet.
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// Math:     out[b,t,h,:] = sum_s softmax_s(q[b,t,h,:] . k[b,s,h,:] / sqrt(D)) v[b,s,h,:]
/// Types:    qkv, out and their gradients all f32 or all bf16; lse f32
/// Shapes:   qkv [B, T, 3 H D] (q | k | v, each [H, D]), D from 1 to 512; out [B, T, H D]; lse [B, H, T],
///           log-sum-exp kept for backward
/// Errors:   ShapeError "[attention_forward] ..."
void attention_forward(Context& ctx, const Tensor& qkv, int64_t num_heads, const Tensor& out, const Tensor& lse);
/// Grads:    dqkv [B, T, 3 H D], overwritten
void attention_backward(Context& ctx, const Tensor& qkv, int64_t num_heads, const Tensor& out, const Tensor& lse,
                        const Tensor& dout, const Tensor& dqkv);

}  // namespace ditrain::ops
