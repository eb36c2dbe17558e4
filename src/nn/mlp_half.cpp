#include "ditrain/nn/block.hpp"

namespace ditrain::nn {

MlpWeights declare_mlp(const Declarations& block, const ModelConfig& c) {
  const int64_t C = c.hidden_size, F = c.mlp_size();
  MlpWeights w;
  if (c.mlp == Mlp::kSwiglu) {  // diffusers' class has no such layers
    w.fc1 = block.linear({.name = "mlp.w12", .weight = {2 * F, C}, .stacked = 2, .split = WeightSplit::kHalves});
    w.fc2 = block.linear({.name = "mlp.w3", .weight = {C, F}, .split = WeightSplit::kInputs});
    return w;
  }
  w.fc1 = block.linear(
      {.name = "mlp.fc1", .weight = {F, C}, .split = WeightSplit::kOutputs, .diffusers = {"ff.net.0.proj"}});
  w.fc2 = block.linear({.name = "mlp.fc2", .weight = {C, F}, .split = WeightSplit::kInputs, .diffusers = {"ff.net.2"}});
  return w;
}

void recognise_mlp(const ShapeInFile& shape_of, ModelConfig& config) {
  const std::vector<int64_t>* w3 = shape_of("blocks.0.mlp.w3.weight");
  config.mlp = w3 != nullptr ? Mlp::kSwiglu : Mlp::kGelu;
  if (w3 != nullptr && w3->size() == 2) config.set_mlp_size(w3->back());
}

MlpHalf::MlpHalf(autograd::Tape& tape, const ModelConfig& c, int64_t index, const MlpWeights& w,
                 const TokenStream& stream, AttentionHalf& first_half)
    : Node("blocks." + std::to_string(index) + ".mlp", w.in_arena()),
      kind_(c.mlp),
      weights_(w),
      stream_(stream),
      first_half_(first_half) {
  weights_.fc1.products = weights_.fc2.products = stream.activations;
  const int64_t B = stream.batch, T = stream.tokens, C = c.hidden_size;
  const int64_t F = c.mlp_size() / stream.tensor.size;
  const DType half = stream.activations;
  norm_ = ModulatedNorm(tape, *this, "2", c, weights_.input_norm, stream, stream.keep_costly,
                        stream.keep_cheap == KeepPolicy::kKeep);
  const Shape before_activation{B, T, kind_ == Mlp::kSwiglu ? 2 * F : F};
  fc1_ = tape.keep(*this, "fc1", before_activation, stream.keep_costly, half);
  activation_BTF_ = tape.keep(*this, kind_ == Mlp::kSwiglu ? "swiglu" : "gelu", {B, T, F}, stream.keep_cheap, half);
  fc2_ = tape.keep(*this, "fc2", {B, T, C}, stream.keep_costly, half);
  if (tape.mode() == autograd::Mode::kInference) return;
  dh_BTC_ = tape.temporary("dh", {B, T, C}, stream.input_gradient());
  dfc2_ = tape.temporary("dbranch", {B, T, C}, half);
  dfc1_BTF_ = tape.temporary("dfc1", before_activation, half);
}

ops::LinearInput MlpHalf::fc1_input(const Samples& s) const {
  return norm_.output(of(first_half_.x_mid_BTC, s), first_half_.modulation(kShiftMlp, s),
                      first_half_.modulation(kScaleMlp, s), s);
}

void MlpHalf::compute(ops::Context& ctx, const Samples& s, const ops::LinearOutput& after_fc2) const {
  norm_.forward(ctx, of(first_half_.x_mid_BTC, s), first_half_.modulation(kShiftMlp, s),
                first_half_.modulation(kScaleMlp, s), s);
  const auto then_activation = kind_ == Mlp::kSwiglu ? ops::then_swiglu : ops::then_gelu;
  weights_.fc1.forward(ctx, fc1_input(s), of(fc1_, s), then_activation(of(activation_BTF_, s)));
  weights_.fc2.forward_summed(ctx, stream_, of(activation_BTF_, s), of(fc2_, s), after_fc2);
}

void MlpHalf::forward_of(ops::Context& ctx, const Samples& s) {
  const ops::Chunk gate = first_half_.modulation(kGateMlp, s);
  compute(ctx, s, ops::then_gate_residual(of(first_half_.x_mid_BTC, s), gate, of(x_out_BTC_, s)));
}

void MlpHalf::recompute(ops::Context& ctx) {
  const bool from_input = fc1_->policy != KeepPolicy::kKeep;  // else the activation comes back in backward
  ctx.over_samples(stream_.batch, [&](ops::Context& part, const Samples& s) {
    if (!from_input) return first_half_.compute_x_mid(part, s);
    first_half_.compute(part, s);
    compute(part, s, {});
  });
}

void MlpHalf::backward(ops::Context& ctx, Gradients gradients) {
  // Without an activation of this node's own at hand, the epilogue that needs its slope writes it again on the way.
  const bool writes_activation = !norm_.keeps_output();
  const auto times_slope = kind_ == Mlp::kSwiglu ? ops::times_swiglu_slope : ops::times_gelu_slope;
  ctx.over_samples(stream_.batch, [&](ops::Context& part, const Samples& s) {
    const Tensor dx = of(stream_.dx_BTC, s), dfc2 = of(dfc2_, s), dfc1 = of(dfc1_BTF_, s), dh = of(dh_BTC_, s);
    ops::gate_residual_backward(part, dx, first_half_.modulation(kGateMlp, s), of(fc2_, s), dfc2,
                                first_half_.dmodulation(kGateMlp, s));
    weights_.fc2.backward_data(part, dfc2, dfc1,
                               times_slope(of(fc1_, s), writes_activation ? of(activation_BTF_, s) : Tensor()));
    weights_.fc1.backward_data_summed(part, stream_, dfc1, dh);
    norm_.backward(part, of(first_half_.x_mid_BTC, s), first_half_.modulation(kShiftMlp, s),
                   first_half_.modulation(kScaleMlp, s), dh, dx, first_half_.dmodulation(kShiftMlp, s),
                   first_half_.dmodulation(kScaleMlp, s), s);
  });
  const Samples all{0, stream_.batch};
  norm_.finish_gradients(ctx, first_half_.modulation(kScaleMlp, all), first_half_.dmodulation(kScaleMlp, all),
                         gradients);
  ctx.without_barriers([&](ops::Context& each) {
    weights_.fc2.backward_weight(each, activation_BTF_->tensor, dfc2_->tensor, gradients);
    weights_.fc1.backward_weight(each, fc1_input(all), dfc1_BTF_->tensor, gradients);
  });
}

}  // namespace ditrain::nn
