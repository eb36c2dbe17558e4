// Embedding tables, timestep sinusoids and patches. Legend: B batch, T = gh x gw tokens, C channels, P patch, D width.
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// Math:     y[b,:] = table[idx[b],:]
/// Errors:   InputError if an index is outside the table
void embedding_forward(Context& ctx, const Tensor& table, const std::vector<int64_t>& idx, const Tensor& y);
/// Grads:    dtable[idx[b],:] += dy[b,:], in order of b
void embedding_backward(Context& ctx, const std::vector<int64_t>& idx, const Tensor& dy, const Tensor& dtable);

/// Math:     y[b,:] = [cos(t_b w_k), sin(t_b w_k)], w_k = exp(-ln(10000) k / h), k < h = dim / 2; odd dim ends with 0
/// Types:    computed in f64, rounded once. Source: timestep_embedding of the reference, which computes in f32
void timestep_embedding(Context& ctx, const std::vector<double>& t, const Tensor& y);

/// Math:     x[b, c, gy P + i, gx P + j] = column (c, i, j) of row (b, gy, gx): the inverse, and the gradient, of what
///           LinearInput::patches gathers
/// Shapes:   x [B, C, H, W]; rows [B, T, C P P], columns in the order of a convolution weight [D, C, P, P]
void patchify_inverse(Context& ctx, const Tensor& rows, int64_t patch, const Tensor& x);

/// Math:     image[b, c, gy P + i, gx P + j] = tokens[b, gy gw + gx, (i P + j) C + c]   (the reference's unpatchify)
/// Shapes:   tokens [B, T, P P C]; image [B, C, H, W]
void unpatchify(Context& ctx, const Tensor& tokens, int64_t patch, const Tensor& image);
/// The inverse map, which is also the gradient.
void unpatchify_inverse(Context& ctx, const Tensor& image, int64_t patch, const Tensor& tokens);

/// y[b,t,:] += pos[t,:]
void add_position(Context& ctx, const Tensor& pos, const Tensor& y);

}  // namespace ditrain::ops
