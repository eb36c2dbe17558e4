#include "ditrain/nn/block.hpp"
#include "ditrain/ops/attention.hpp"

namespace ditrain::nn {

AttentionHalf::AttentionHalf(autograd::Tape& tape, const DitConfig& c, int64_t index, const BlockWeights& w,
                             const TokenStream& stream, const Modulations& modulations)
    : Node("blocks." + std::to_string(index) + ".attn", {w.adaLN.w, w.adaLN.b, w.qkv.w, w.qkv.b, w.proj.w, w.proj.b}),
      index_(index),
      num_heads_(c.num_heads),
      weights_(w),
      stream_(stream),
      modulations_(modulations) {
  const int64_t B = stream.batch, T = c.tokens(), C = c.hidden_size;
  const DType half = stream.activations;
  x_BTC = tape.keep(*this, "x", {B, T, C});
  if (stream.keep_cheap == KeepPolicy::kKeep) h_BTC_ = tape.keep(*this, "h1", {B, T, C}, KeepPolicy::kKeep, half);
  mean_ = tape.keep(*this, "mean1", {B, T}, stream.keep_costly);
  rstd_ = tape.keep(*this, "rstd1", {B, T}, stream.keep_costly);
  qkv_ = tape.keep(*this, "qkv", {B, T, 3 * C}, stream.keep_costly, half);
  attn_ = tape.keep(*this, "attn", {B, T, C}, stream.keep_costly, half);
  lse_ = tape.keep(*this, "lse", {B, num_heads_, T}, stream.keep_costly);
  proj_ = tape.keep(*this, "proj", {B, T, C}, stream.keep_costly, half);
  x_mid_BTC = tape.keep(*this, "x_mid", {B, T, C}, stream.keep_cheap);
  if (tape.mode() == autograd::Mode::kInference) return;
  dmod_ = tape.temporary("dmodulation", {B, kNumModulations * C});
  dh_BTC_ = tape.temporary("dh", {B, T, C}, half);
  dattn_ = tape.temporary("dattn", {B, T, C}, half);
  dqkv_ = tape.temporary("dqkv", qkv_->shape, half);
}

ops::LinearInput AttentionHalf::qkv_input() const {
  if (h_BTC_ != nullptr) return h_BTC_->tensor;
  return {x_BTC->tensor, {mean_->tensor, rstd_->tensor, modulation(kShiftMsa), modulation(kScaleMsa)}};
}

void AttentionHalf::compute_x_mid(ops::Context& ctx) const {
  ops::gate_residual_forward(ctx, x_BTC->tensor, modulation(kGateMsa), proj_->tensor, x_mid_BTC->tensor);
}

void AttentionHalf::forward(ops::Context& ctx) {
  if (h_BTC_ != nullptr)
    ops::layer_norm_modulate_forward(ctx, x_BTC->tensor, modulation(kShiftMsa), modulation(kScaleMsa), h_BTC_->tensor,
                                     mean_->tensor, rstd_->tensor);
  else
    ops::layer_norm_statistics(ctx, x_BTC->tensor, mean_->tensor, rstd_->tensor);
  weights_.qkv.forward(ctx, qkv_input(), qkv_->tensor);
  ops::attention_forward(ctx, qkv_->tensor, num_heads_, attn_->tensor, lse_->tensor);
  weights_.proj.forward(ctx, attn_->tensor, proj_->tensor,
                        ops::then_gate_residual(x_BTC->tensor, modulation(kGateMsa), x_mid_BTC->tensor));
}

void AttentionHalf::backward(ops::Context& ctx, Gradients gradients) {
  const Tensor &dx = stream_.dx_BTC->tensor, &dproj = dh_BTC_->tensor, &dattn = dattn_->tensor;
  ops::gate_residual_backward(ctx, dx, modulation(kGateMsa), proj_->tensor, dproj, dmodulation(kGateMsa));
  weights_.proj.backward_weight(ctx, attn_->tensor, dproj, gradients);
  weights_.proj.backward_data(ctx, dproj, dattn);
  ops::attention_backward(ctx, qkv_->tensor, num_heads_, attn_->tensor, lse_->tensor, dattn, dqkv_->tensor);

  weights_.qkv.backward_weight(ctx, qkv_input(), dqkv_->tensor, gradients);
  weights_.qkv.backward_data(ctx, dqkv_->tensor, dh_BTC_->tensor);
  ops::layer_norm_modulate_backward(ctx, x_BTC->tensor, mean_->tensor, rstd_->tensor, modulation(kScaleMsa),
                                    dh_BTC_->tensor, dx, dmodulation(kShiftMsa), dmodulation(kScaleMsa));

  weights_.adaLN.backward_weight(ctx, stream_.cond_BC->tensor, dmod_->tensor, gradients);
  weights_.adaLN.add_backward_data(ctx, dmod_->tensor, stream_.dcond_BC->tensor);
}

}  // namespace ditrain::nn
