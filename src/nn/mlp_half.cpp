#include "ditrain/nn/block.hpp"

namespace ditrain::nn {

MlpHalf::MlpHalf(autograd::Tape& tape, const DitConfig& c, int64_t index, const BlockWeights& w,
                 const TokenStream& stream, AttentionHalf& first_half)
    : Node("blocks." + std::to_string(index) + ".mlp", {w.fc1.w, w.fc1.b, w.fc2.w, w.fc2.b}),
      weights_(w),
      stream_(stream),
      first_half_(first_half) {
  const int64_t B = stream.batch, T = c.tokens(), C = c.hidden_size, F = c.mlp_size();
  const DType half = stream.activations;
  if (stream.keep_cheap == KeepPolicy::kKeep) h_BTC_ = tape.keep(*this, "h2", {B, T, C}, KeepPolicy::kKeep, half);
  mean_ = tape.keep(*this, "mean2", {B, T}, stream.keep_costly);
  rstd_ = tape.keep(*this, "rstd2", {B, T}, stream.keep_costly);
  fc1_ = tape.keep(*this, "fc1", {B, T, F}, stream.keep_costly, half);
  gelu_BTF_ = tape.keep(*this, "gelu", {B, T, F}, stream.keep_cheap, half);
  fc2_ = tape.keep(*this, "fc2", {B, T, C}, stream.keep_costly, half);
  if (tape.mode() == autograd::Mode::kInference) return;
  dh_BTC_ = tape.temporary("dh", {B, T, C}, half);
  dfc1_BTF_ = tape.temporary("dfc1", {B, T, F}, half);
}

ops::LinearInput MlpHalf::fc1_input() const {
  if (h_BTC_ != nullptr) return h_BTC_->tensor;
  return {first_half_.x_mid_BTC->tensor,
          {mean_->tensor, rstd_->tensor, first_half_.modulation(kShiftMlp), first_half_.modulation(kScaleMlp)}};
}

void MlpHalf::compute(ops::Context& ctx, const ops::LinearOutput& after_fc2) const {
  const Tensor& x = first_half_.x_mid_BTC->tensor;
  if (h_BTC_ != nullptr)
    ops::layer_norm_modulate_forward(ctx, x, first_half_.modulation(kShiftMlp), first_half_.modulation(kScaleMlp),
                                     h_BTC_->tensor, mean_->tensor, rstd_->tensor);
  else
    ops::layer_norm_statistics(ctx, x, mean_->tensor, rstd_->tensor);
  weights_.fc1.forward(ctx, fc1_input(), fc1_->tensor, ops::then_gelu(gelu_BTF_->tensor));
  weights_.fc2.forward(ctx, gelu_BTF_->tensor, fc2_->tensor, after_fc2);
}

void MlpHalf::forward(ops::Context& ctx) {
  compute(ctx,
          ops::then_gate_residual(first_half_.x_mid_BTC->tensor, first_half_.modulation(kGateMlp), x_out_BTC_->tensor));
}

void MlpHalf::recompute(ops::Context& ctx) {
  if (fc1_->policy == KeepPolicy::kKeep) return first_half_.compute_x_mid(ctx);  // the GELU comes back in backward
  first_half_.forward(ctx);
  compute(ctx, {});
}

void MlpHalf::backward(ops::Context& ctx, Gradients gradients) {
  const Tensor &dx = stream_.dx_BTC->tensor, &dfc2 = dh_BTC_->tensor, &dfc1 = dfc1_BTF_->tensor;
  ops::gate_residual_backward(ctx, dx, first_half_.modulation(kGateMlp), fc2_->tensor, dfc2,
                              first_half_.dmodulation(kGateMlp));
  // Without a GELU of this node's own at hand, the epilogue that needs its slope writes it again on the way.
  const Tensor& gelu = gelu_BTF_->tensor;
  weights_.fc2.backward_data(ctx, dfc2, dfc1, ops::times_gelu_slope(fc1_->tensor, h_BTC_ != nullptr ? Tensor() : gelu));
  weights_.fc2.backward_weight(ctx, gelu, dfc2, gradients);
  weights_.fc1.backward_weight(ctx, fc1_input(), dfc1, gradients);
  weights_.fc1.backward_data(ctx, dfc1, dh_BTC_->tensor);
  ops::layer_norm_modulate_backward(ctx, first_half_.x_mid_BTC->tensor, mean_->tensor, rstd_->tensor,
                                    first_half_.modulation(kScaleMlp), dh_BTC_->tensor, dx,
                                    first_half_.dmodulation(kShiftMlp), first_half_.dmodulation(kScaleMlp));
}

}  // namespace ditrain::nn
