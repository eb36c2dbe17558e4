// Linear layers. Legend: M rows (batch x tokens), K inputs, N outputs; w is [N, K] as in the public state dict.
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// Math:     y = x w^T + b
/// Shapes:   x [..., K], w [N, K], b [N] or undefined, y [..., N]; w may have more dimensions, K is what follows N
void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y);

/// One of several linear layers on the same input.
struct LinearLayer {
  Tensor w, b;  ///< [N, K], [N]
  Tensor y;     ///< [..., N], output
};
/// Math:     y = x w^T + b for every layer, to the bits of linear_forward
/// Threads:  one job for the team, cut by columns of all layers together: for layers of few rows
void linear_forward_all(Context& ctx, const Tensor& x, const std::vector<LinearLayer>& layers);

/// Math:     dx = dy w
/// Grads:    dx is overwritten, or added to if `accumulate`
void linear_backward_data(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx, bool accumulate = false);

/// Math:     dw = dy^T x,  db = sum of dy over rows
/// Grads:    both added to, or overwritten if not `accumulate`, which is the same as adding to zeros; db may be
/// undefined Threads:  cut by rows of the weight
void linear_backward_weight(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& db,
                            bool accumulate = true);

}  // namespace ditrain::ops
