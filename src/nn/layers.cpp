#include "ditrain/nn/layers.hpp"

#include "ditrain/base/error.hpp"

namespace ditrain::nn {

void LinearWeights::forward(ops::Context& ctx, const ops::LinearInput& x, const Tensor& y,
                            const ops::LinearOutput& output) const {
  ops::linear_forward(ctx, x, weight(), bias(), y, output);
}
void LinearWeights::backward_weight(ops::Context& ctx, const ops::LinearInput& x, const Tensor& dy,
                                    Gradients gradients) const {
  ops::linear_backward_weight(ctx, x, dy, w->grad, b != nullptr ? b->grad : Tensor(), gradients == Gradients::kAdd);
}
void LinearWeights::backward_weight_of_samples(ops::Context& ctx, const TokenStream& stream, const Tensor& x,
                                               const Tensor& dy, Gradients gradients) const {
  if (stream.sink != nullptr && w->offers_gradient && stream.sink->take(ctx, *w, x, dy, gradients)) return;
  backward_weight(ctx, x, dy, gradients);
}
void LinearWeights::backward_data(ops::Context& ctx, const Tensor& dy, const Tensor& dx,
                                  const ops::LinearOutput& output) const {
  ops::linear_backward_data(ctx, dy, weight(), dx, /*accumulate=*/false, output);
}
void LinearWeights::add_backward_data(ops::Context& ctx, const Tensor& dy, const Tensor& dx) const {
  ops::linear_backward_data(ctx, dy, weight(), dx, /*accumulate=*/true);
}

// The bias is one of the addends, that of the first rank.
void LinearWeights::forward_summed(ops::Context& ctx, const TokenStream& stream, const Tensor& x, const Tensor& y,
                                   const ops::LinearOutput& output) const {
  using Kind = ops::LinearOutput::Kind;
  if (stream.tensor.alone()) return forward(ctx, x, y, output);
  DITRAIN_CHECK(output.kind == Kind::kPlain || output.kind == Kind::kGateResidual, "what follows a sum over ranks");
  const bool rounded = y.dtype() == DType::kBF16;
  const Tensor sum = rounded ? stream.partial_BTC->tensor : y;
  ops::linear_forward(ctx, x, weight(), stream.tensor.rank == 0 ? bias() : Tensor(), sum);
  stream.tensor.sum_over_ranks(sum);
  if (rounded) ops::to_bf16(ctx, sum, y);
  if (output.kind == Kind::kGateResidual) ops::gate_residual_forward(ctx, output.in, output.gate, y, output.out);
}
void LinearWeights::backward_data_summed(ops::Context& ctx, const TokenStream& stream, const Tensor& dy,
                                         const Tensor& dx) const {
  backward_data(ctx, dy, dx);
  stream.tensor.sum_over_ranks(dx);
}

}  // namespace ditrain::nn
