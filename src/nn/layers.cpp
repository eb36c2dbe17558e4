#include "ditrain/nn/layers.hpp"

#include "ditrain/ops/linear.hpp"

namespace ditrain::nn {

void LinearWeights::forward(ops::Context& ctx, const Tensor& x, const Tensor& y) const {
  ops::linear_forward(ctx, x, w->value, b->value, y);
}
void LinearWeights::backward_weight(ops::Context& ctx, const Tensor& x, const Tensor& dy) const {
  ops::linear_backward_weight(ctx, x, dy, w->grad, b->grad);
}
void LinearWeights::backward_data(ops::Context& ctx, const Tensor& dy, const Tensor& dx, bool accumulate) const {
  ops::linear_backward_data(ctx, dy, w->value, dx, accumulate);
}

}  // namespace ditrain::nn
