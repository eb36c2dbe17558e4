// Linear layers. Legend: M rows (batch x tokens), K inputs, N outputs; w is [N, K] as in the public state dict.
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// Math:     y = x w^T + b
/// Shapes:   x [..., K], w [N, K], b [N] or undefined, y [..., N]; w may have more dimensions, K is what follows N
void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y);

/// Math:     dx = dy w
/// Grads:    dx is overwritten, or added to if `accumulate`
void linear_backward_data(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx, bool accumulate = false);

/// Math:     dw = dy^T x,  db = sum of dy over rows
/// Grads:    both added to, or overwritten if not `accumulate`, which is the same as adding to zeros; db may be
/// undefined Threads:  cut by rows of the weight
void linear_backward_weight(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& db,
                            bool accumulate = true);

}  // namespace ditrain::ops
