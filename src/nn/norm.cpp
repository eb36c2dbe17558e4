#include "ditrain/nn/norm.hpp"

namespace ditrain::nn {

std::vector<Parameter*> NormWeights::with(std::vector<Parameter*> others) const {
  if (w != nullptr) others.insert(others.begin(), w);
  return others;
}

// diffusers' class has no such weights.
NormWeights declare_norm(const Declarations& module, const std::string& name, const ModelConfig& c) {
  if (c.norm == Norm::kLayer) return {};
  return {module.parameter({.name = name + ".weight", .full_shape = {c.hidden_size}, .initial = Initial::constant(1)})};
}

ModulatedNorm::ModulatedNorm(autograd::Tape& tape, autograd::Node& node, const std::string& suffix,
                             const ModelConfig& c, const NormWeights& weights, const TokenStream& stream,
                             KeepPolicy statistics, bool keeps_output)
    : kind_(c.norm == Norm::kRms ? ops::NormKind::kRms : ops::NormKind::kLayer), weights_(weights) {
  const int64_t B = stream.batch, T = stream.tokens, C = c.hidden_size;
  if (keeps_output) h_BTC_ = tape.keep(node, "h" + suffix, {B, T, C}, KeepPolicy::kKeep, stream.activations);
  mean_ = tape.keep(node, "mean" + suffix, {B, T}, statistics);
  rstd_ = tape.keep(node, "rstd" + suffix, {B, T}, statistics);
  if (weights_.w != nullptr) joined_ = tape.temporary("norm_weight_and_modulation", {B, 2 * C});
}

void ModulatedNorm::join(ops::Context& ctx, const ops::Chunk& shift, const ops::Chunk& scale, const Samples& s) const {
  if (joined_ != nullptr) ops::join_weight(ctx, shift, scale, weights_.w->value, of(joined_, s));
}

ops::NormTerms ModulatedNorm::terms(const ops::Chunk& shift, const ops::Chunk& scale, const Samples& s) const {
  const Tensor mean = of(mean_, s), rstd = of(rstd_, s);
  if (joined_ == nullptr) return {mean, rstd, shift, scale};
  return {mean, rstd, {of(joined_, s), 0}, {of(joined_, s), 1}};
}

void ModulatedNorm::forward(ops::Context& ctx, const Tensor& x, const ops::Chunk& shift, const ops::Chunk& scale,
                            const Samples& s) const {
  join(ctx, shift, scale, s);
  const ops::NormTerms t = terms(shift, scale, s);
  if (keeps_output())
    ops::layer_norm_modulate_forward(ctx, x, t.shift, t.scale, of(h_BTC_, s), t.mean, t.rstd, kind_);
  else
    ops::layer_norm_statistics(ctx, x, t.mean, t.rstd, kind_);
}

ops::LinearInput ModulatedNorm::output(const Tensor& x, const ops::Chunk& shift, const ops::Chunk& scale,
                                       const Samples& s) const {
  if (keeps_output()) return of(h_BTC_, s);
  return {x, terms(shift, scale, s)};
}

// Other norms have used the memory of the joined weight since forward.
void ModulatedNorm::backward(ops::Context& ctx, const Tensor& x, const ops::Chunk& shift, const ops::Chunk& scale,
                             const Tensor& dy, const Tensor& dx, const ops::Chunk& dshift, const ops::Chunk& dscale,
                             const Samples& s) const {
  join(ctx, shift, scale, s);
  const ops::NormTerms t = terms(shift, scale, s);
  ops::layer_norm_modulate_backward(ctx, x, t.mean, t.rstd, t.scale, dy, dx, dshift, dscale, kind_);
}

void ModulatedNorm::finish_gradients(ops::Context& ctx, const ops::Chunk& scale, const ops::Chunk& dscale,
                                     Gradients gradients) const {
  if (weights_.w == nullptr) return;
  ops::split_weight_gradient(ctx, scale, weights_.w->value, dscale, weights_.w->grad, gradients == Gradients::kAdd);
}

}  // namespace ditrain::nn
