#include "ditrain/nn/final_layer.hpp"

#include "ditrain/ops/elementwise.hpp"

namespace ditrain::nn {

FinalLayerWeights declare_final_layer(const Declarations& model, const ModelConfig& c) {
  const Declarations layer = model.in("final_layer");
  FinalLayerWeights w;
  w.norm = declare_norm(layer, "norm_final", c);
  w.linear = layer.linear({.name = "linear",
                           .weight = {c.patch_side() * c.patch_side() * c.out_channels(), c.hidden_size},
                           .initial = Initial::constant(0),
                           .group = ParameterGroup::kOutput,
                           .diffusers = {"proj_out_2"}});
  w.adaLN = declare_modulation(layer, c, 2, "proj_out_1");
  return w;
}

FinalLayer::FinalLayer(autograd::Tape& tape, const ModelConfig& c, const FinalLayerWeights& w,
                       const TokenStream& stream, ActivationRef modulation)
    : Node("final_layer", w.in_arena()),
      patches_(c.patch_size, c.patch_overlap),
      weights_(w),
      stream_(stream),
      modulation_(std::move(modulation)) {
  weights_.adaLN.products = weights_.linear.products = stream.activations;
  const int64_t B = stream.batch, T = stream.tokens, C = c.hidden_size;
  x_BTC = tape.keep(*this, "x", {B, T, C});
  norm_ = ModulatedNorm(tape, *this, "", c, weights_.norm, stream, KeepPolicy::kKeep, /*keeps_output=*/false);
  tokens_ = tape.temporary("tokens", {B, T, w.linear.w->full_shape[0]});
  out = tape.temporary("out", {B, c.out_channels(), c.input_height, c.input_width});
  if (tape.mode() == autograd::Mode::kInference) return;
  dout = tape.temporary("dout", out->shape);
  dtokens_ = tape.temporary("dtokens", tokens_->shape);
  dmod_ = tape.temporary("dfinal_modulation", {B, 2 * C});
  dh_BTC_ = tape.temporary("dh", {B, T, C}, stream.input_gradient());
}

ops::LinearInput FinalLayer::normalised() const {
  return norm_.output(x_BTC->tensor, shift(), scale(), {0, stream_.batch});
}

void FinalLayer::forward(ops::Context& ctx) {
  norm_.forward(ctx, x_BTC->tensor, shift(), scale(), {0, stream_.batch});
  weights_.linear.forward(ctx, normalised(), tokens_->tensor);
  ops::unpatchify(ctx, tokens_->tensor, patches_, out->tensor);
}

void FinalLayer::backward(ops::Context& ctx, Gradients gradients) {
  const Tensor& dx = stream_.dx_BTC->tensor;
  ops::unpatchify_backward(ctx, dout->tensor, patches_, dtokens_->tensor);
  weights_.linear.backward_data(ctx, dtokens_->tensor, dh_BTC_->tensor);
  ops::zero(ctx, dx);
  const ops::Chunk dshift{dmod_->tensor, 0}, dscale{dmod_->tensor, 1};
  norm_.backward(ctx, x_BTC->tensor, shift(), scale(), dh_BTC_->tensor, dx, dshift, dscale, {0, stream_.batch});
  norm_.finish_gradients(ctx, scale(), dscale, gradients);
  weights_.linear.backward_weight(ctx, normalised(), dtokens_->tensor, gradients);
  weights_.adaLN.backward_weight_of_samples(ctx, stream_, stream_.cond_BC->tensor, dmod_->tensor, gradients);
  weights_.adaLN.backward_data(ctx, dmod_->tensor, stream_.dcond_BC->tensor);
}

}  // namespace ditrain::nn
