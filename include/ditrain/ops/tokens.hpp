// Ops that join and split rows of tokens. Legend: B batch, E extra tokens before those of the image, L tokens of the
// image, T = E + L, C width. All f32.
#pragma once
#include <vector>

#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// Math:     x[b,e,:] = extras[e][b,:] + pos[e,:];  x[b,E+l,:] = patches[b,l,:] + pos[E+l,:]
/// Shapes:   extras: E of [B, C]; patches [B, L, C]; pos [1, T, C]; x [B, T, C]
void join_tokens(Context& ctx, const std::vector<Tensor>& extras, const Tensor& patches, const Tensor& pos,
                 const Tensor& x);
/// Grads:    dextras (those that are defined) and dpatches are overwritten; dpos is overwritten, or added to: the sum
///           over samples, in their order
void split_tokens_gradient(Context& ctx, const Tensor& dx, const std::vector<Tensor>& dextras, const Tensor& dpatches,
                           const Tensor& dpos, bool accumulate);

/// Math:     y[b,l,:] = x[b,E+l,:]
void last_tokens(Context& ctx, const Tensor& x, const Tensor& y);
/// Grads:    dx is overwritten, with zeros for the tokens that y lacks
void last_tokens_gradient(Context& ctx, const Tensor& dy, const Tensor& dx);

/// Math:     y[b,k,:] = x[b,places[b,k],:]
/// Shapes:   x [B, T, C]; places [B, K], from 0 to below T; y [B, K, C]
void gather_tokens(Context& ctx, const Tensor& x, const int64_t* places, const Tensor& y);
/// Math:     x[b,places[b,k],:] = y[b,k,:]; other rows of x are left alone. The places of a sample must be distinct
void scatter_tokens(Context& ctx, const Tensor& y, const int64_t* places, const Tensor& x);

/// Math:     y[...,:] = a[...,:] | b[...,:]
/// Shapes:   a, b [..., C]; y [..., 2C]
void concatenate(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& y);
/// The inverse of concatenate, which is also its gradient.
void split(Context& ctx, const Tensor& y, const Tensor& a, const Tensor& b);

}  // namespace ditrain::ops
