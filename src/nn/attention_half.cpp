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
  x_BTC = tape.keep(*this, "x", {B, T, C});
  h_BTC_ = tape.keep(*this, "h1", {B, T, C}, stream.keep_cheap);
  mean_ = tape.keep(*this, "mean1", {B, T}, stream.keep_costly);
  rstd_ = tape.keep(*this, "rstd1", {B, T}, stream.keep_costly);
  qkv_ = tape.keep(*this, "qkv", {B, T, 3 * C}, stream.keep_costly);
  attn_ = tape.keep(*this, "attn", {B, T, C}, stream.keep_costly);
  lse_ = tape.keep(*this, "lse", {B, num_heads_, T}, stream.keep_costly);
  proj_ = tape.keep(*this, "proj", {B, T, C}, stream.keep_costly);
  x_mid_BTC = tape.keep(*this, "x_mid", {B, T, C}, stream.keep_cheap);
  if (tape.mode() == autograd::Mode::kInference) return;
  dmod_ = tape.temporary("dmodulation", {B, kNumModulations * C});
  dh_BTC_ = tape.temporary("dh", {B, T, C});
  dattn_ = tape.temporary("dattn", {B, T, C});
  dqkv_ = tape.temporary("dqkv", qkv_->shape);
}

void AttentionHalf::normalise(ops::Context& ctx) const {
  ops::layer_norm_modulate_forward(ctx, x_BTC->tensor, modulation(kShiftMsa), modulation(kScaleMsa), h_BTC_->tensor,
                                   mean_->tensor, rstd_->tensor);
}

void AttentionHalf::compute_x_mid(ops::Context& ctx) const {
  ops::gate_residual_forward(ctx, x_BTC->tensor, modulation(kGateMsa), proj_->tensor, x_mid_BTC->tensor);
}

void AttentionHalf::forward(ops::Context& ctx) {
  normalise(ctx);
  weights_.qkv.forward(ctx, h_BTC_->tensor, qkv_->tensor);
  ops::attention_forward(ctx, qkv_->tensor, num_heads_, attn_->tensor, lse_->tensor);
  weights_.proj.forward(ctx, attn_->tensor, proj_->tensor);
  compute_x_mid(ctx);
}

void AttentionHalf::recompute(ops::Context& ctx) {
  if (qkv_->policy == KeepPolicy::kKeep) normalise(ctx);  // else the MLP half, which went before, recomputed this half
}

void AttentionHalf::backward(ops::Context& ctx, Gradients gradients) {
  const Tensor &dx = stream_.dx_BTC->tensor, &dproj = dh_BTC_->tensor, &dattn = dattn_->tensor;
  ops::gate_residual_backward(ctx, dx, modulation(kGateMsa), proj_->tensor, dproj, dmodulation(kGateMsa));
  weights_.proj.backward_weight(ctx, attn_->tensor, dproj, gradients);
  weights_.proj.backward_data(ctx, dproj, dattn);
  ops::attention_backward(ctx, qkv_->tensor, num_heads_, attn_->tensor, lse_->tensor, dattn, dqkv_->tensor);

  weights_.qkv.backward_weight(ctx, h_BTC_->tensor, dqkv_->tensor, gradients);
  weights_.qkv.backward_data(ctx, dqkv_->tensor, dh_BTC_->tensor);
  ops::layer_norm_modulate_backward(ctx, x_BTC->tensor, mean_->tensor, rstd_->tensor, modulation(kScaleMsa),
                                    dh_BTC_->tensor, dx, dmodulation(kShiftMsa), dmodulation(kScaleMsa));

  weights_.adaLN.backward_weight(ctx, stream_.cond_BC->tensor, dmod_->tensor, gradients);
  weights_.adaLN.backward_data(ctx, dmod_->tensor, stream_.dcond_BC->tensor, /*accumulate=*/true);
}

}  // namespace ditrain::nn
