#include "ditrain/nn/block.hpp"

namespace ditrain::nn {

MlpHalf::MlpHalf(autograd::Tape& tape, const DitConfig& c, int64_t index, const BlockWeights& w,
                 const TokenStream& stream, AttentionHalf& first_half)
    : Node("blocks." + std::to_string(index) + ".mlp", {w.fc1.w, w.fc1.b, w.fc2.w, w.fc2.b}),
      weights_(w),
      stream_(stream),
      first_half_(first_half) {
  const int64_t B = stream.batch, T = c.tokens(), C = c.hidden_size, F = c.mlp_size();
  h_BTC_ = tape.keep(*this, "h2", {B, T, C}, stream.keep_cheap);
  mean_ = tape.keep(*this, "mean2", {B, T}, stream.keep_costly);
  rstd_ = tape.keep(*this, "rstd2", {B, T}, stream.keep_costly);
  fc1_ = tape.keep(*this, "fc1", {B, T, F}, stream.keep_costly);
  gelu_BTF_ = tape.keep(*this, "gelu", {B, T, F}, stream.keep_cheap);
  fc2_ = tape.keep(*this, "fc2", {B, T, C}, stream.keep_costly);
  if (tape.mode() == autograd::Mode::kInference) return;
  dh_BTC_ = tape.temporary("dh", {B, T, C});
  dgelu_BTF_ = tape.temporary("dgelu", {B, T, F});
}

void MlpHalf::normalise(ops::Context& ctx) const {
  ops::layer_norm_modulate_forward(ctx, first_half_.x_mid_BTC->tensor, first_half_.modulation(kShiftMlp),
                                   first_half_.modulation(kScaleMlp), h_BTC_->tensor, mean_->tensor, rstd_->tensor);
}

void MlpHalf::compute(ops::Context& ctx) const {
  normalise(ctx);
  weights_.fc1.forward(ctx, h_BTC_->tensor, fc1_->tensor);
  ops::gelu_forward(ctx, fc1_->tensor, gelu_BTF_->tensor);
  weights_.fc2.forward(ctx, gelu_BTF_->tensor, fc2_->tensor);
}

void MlpHalf::forward(ops::Context& ctx) {
  compute(ctx);
  ops::gate_residual_forward(ctx, first_half_.x_mid_BTC->tensor, first_half_.modulation(kGateMlp), fc2_->tensor,
                             x_out_BTC_->tensor);
}

void MlpHalf::recompute(ops::Context& ctx) {
  if (fc1_->policy == KeepPolicy::kKeep) {
    first_half_.compute_x_mid(ctx);
    normalise(ctx);
    ops::gelu_forward(ctx, fc1_->tensor, gelu_BTF_->tensor);
  } else {
    first_half_.forward(ctx);
    compute(ctx);
  }
}

void MlpHalf::backward(ops::Context& ctx, Gradients gradients) {
  const Tensor &dx = stream_.dx_BTC->tensor, &dfc2 = dh_BTC_->tensor, &dfc1 = dgelu_BTF_->tensor;
  ops::gate_residual_backward(ctx, dx, first_half_.modulation(kGateMlp), fc2_->tensor, dfc2,
                              first_half_.dmodulation(kGateMlp));
  weights_.fc2.backward_weight(ctx, gelu_BTF_->tensor, dfc2, gradients);
  weights_.fc2.backward_data(ctx, dfc2, dgelu_BTF_->tensor);
  ops::gelu_backward(ctx, fc1_->tensor, dgelu_BTF_->tensor, dfc1);
  weights_.fc1.backward_weight(ctx, h_BTC_->tensor, dfc1, gradients);
  weights_.fc1.backward_data(ctx, dfc1, dh_BTC_->tensor);
  ops::layer_norm_modulate_backward(ctx, first_half_.x_mid_BTC->tensor, mean_->tensor, rstd_->tensor,
                                    first_half_.modulation(kScaleMlp), dh_BTC_->tensor, dx,
                                    first_half_.dmodulation(kShiftMlp), first_half_.dmodulation(kScaleMlp));
}

}  // namespace ditrain::nn
