// Embedding tables, timestep sinusoids and patches. Legend: B batch, T = gh x gw tokens, C channels, P patch,
// V overlap, K = P + 2 V side of what a token reads and predicts, D width.
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// Math:     y[b,:] = table[idx[b],:]
/// Errors:   InputError if an index is outside the table; ShapeError
void embedding_forward(Context& ctx, const Tensor& table, const std::vector<int64_t>& idx, const Tensor& y);
/// Grads:    dtable[idx[b],:] += dy[b,:], in order of b
void embedding_backward(Context& ctx, const std::vector<int64_t>& idx, const Tensor& dy, const Tensor& dtable);

/// Math:     y[b,:] = [cos(t_b w_k), sin(t_b w_k)], w_k = exp(-ln(10000) k / h), k < h = dim / 2; odd dim ends with 0
/// Types:    computed in f64, rounded once. Source: timestep_embedding of the reference, which computes in f32
void timestep_embedding(Context& ctx, const std::vector<double>& t, const Tensor& y);

/// Patches of `size` x `size` pixels, each with `overlap` pixels of its neighbours on every side.
struct Patches {
  Patches(int64_t of_size, int64_t of_overlap = 0) : size(of_size), overlap(of_overlap) {}  // NOLINT: a size is patches
  int64_t side() const { return size + 2 * overlap; }
  int64_t size, overlap;
};

/// Math:     column (c, i, j) of row (b, gy, gx) = x[b, c, gy P + i - V, gx P + j - V], zeros around the image: the
///           values of a convolution of stride P and padding V. Without overlap: what LinearInput::patches gathers
/// Shapes:   x [B, C, H, W]; rows [B, T, C K K], columns in the order of a convolution weight [D, C, K, K]
void patchify(Context& ctx, const Tensor& x, const Patches& patches, const Tensor& rows);
/// Grads:    dx is overwritten: each pixel gets the sum over the columns that read it, in the order of their tokens.
///           Without overlap it is the inverse of patchify
void patchify_backward(Context& ctx, const Tensor& drows, const Patches& patches, const Tensor& dx);

/// Math:     image[b, c, y, x] = sum_{gy, gx} u_gy(i) u_gx(j) tokens[b, gy gw + gx, (i K + j) C + c], i = y + V - gy P,
///           j = x + V - gx P, over the tokens that have the pixel, in their order; u is overlap_weights. Without
///           overlap: the reference's unpatchify
/// Shapes:   tokens [B, T, K K C]; image [B, C, H, W]
void unpatchify(Context& ctx, const Tensor& tokens, const Patches& patches, const Tensor& image);
/// Grads:    dtokens is overwritten, with zeros outside the image. Without overlap it is the inverse of unpatchify
void unpatchify_backward(Context& ctx, const Tensor& dimage, const Patches& patches, const Tensor& dtokens);

/// Returns [n, K]: the weight of pixel i of token g, for n tokens along a side.
/// Math:     u_g(i) = r(i) / sum over the tokens that have the pixel, r(i) = min(i + 1, K - i, 2 V + 1); 0 beside the
///           image. A prediction fades into its neighbours in 2 V + 1 equal steps
std::vector<float> overlap_weights(int64_t n, const Patches& patches);

/// y[b,t,:] += pos[t,:]
void add_position(Context& ctx, const Tensor& pos, const Tensor& y);

}  // namespace ditrain::ops
