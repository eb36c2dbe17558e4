#include "ditrain/nn/block.hpp"

namespace ditrain::nn {

namespace {

// diffusers' class has no such norms.
HeadNormWeights declare_head_norm(const Declarations& block, const std::string& name, const ModelConfig& c) {
  HeadNormWeights norm;
  if (c.qk_norm == QkNorm::kNone) return norm;
  const ParameterGroup group = ParameterGroup::kNorm;
  norm.w = block.parameter(
      {.name = name + ".weight", .full_shape = {c.head_dim()}, .initial = Initial::constant(1), .group = group});
  if (c.qk_norm == QkNorm::kLayer)
    norm.b = block.parameter({.name = name + ".bias", .full_shape = {c.head_dim()}, .group = group});
  return norm;
}

}  // namespace

AttentionWeights declare_attention(const Declarations& block, const ModelConfig& c) {
  const int64_t C = c.hidden_size;
  AttentionWeights w;
  w.qkv = block.linear({.name = "attn.qkv",
                        .weight = {3 * C, C},
                        .stacked = 3,
                        .split = WeightSplit::kThirds,
                        .diffusers = {"attn1.to_q", "attn1.to_k", "attn1.to_v"}});
  w.q_norm = declare_head_norm(block, "attn.q_norm", c);
  w.k_norm = declare_head_norm(block, "attn.k_norm", c);
  w.proj = block.linear(
      {.name = "attn.proj", .weight = {C, C}, .split = WeightSplit::kInputs, .diffusers = {"attn1.to_out.0"}});
  return w;
}

double attention_macs(const ModelConfig& c, int64_t tokens) {
  const double T = double(tokens), C = double(c.hidden_size);
  return 2 * T * T * C;
}

std::string advice_on_attention(const std::string& name, bool extra) {
  if (name.find(".attn.q_norm.") == name.npos && name.find(".attn.k_norm.") == name.npos) return "";
  const bool shift = name.ends_with(".bias");
  if (extra) return shift ? "model.qk_norm: rms, or none if there are no scales" : "model.qk_norm: none";
  return shift ? "model.qk_norm: layer" : "model.qk_norm: rms, or layer if there are shifts (.bias)";
}

int64_t recognise_attention(const ShapeInFile& shape_of, ModelConfig& config) {
  const std::vector<int64_t>* scales = shape_of("blocks.0.attn.q_norm.weight");
  config.qk_norm = scales == nullptr                                  ? QkNorm::kNone
                   : shape_of("blocks.0.attn.q_norm.bias") != nullptr ? QkNorm::kLayer
                                                                      : QkNorm::kRms;
  return scales != nullptr && scales->size() == 1 ? scales->front() : 0;
}

std::vector<Parameter*> AttentionWeights::in_arena() const {
  std::vector<Parameter*> all{qkv.w, qkv.b};
  for (Parameter* p : {q_norm.w, q_norm.b, k_norm.w, k_norm.b})
    if (p != nullptr) all.push_back(p);
  all.insert(all.end(), {proj.w, proj.b});
  return all;
}

ops::HeadNorm AttentionWeights::norm() const {
  const auto value = [](const Parameter* p) { return p != nullptr ? p->value : Tensor(); };
  return {value(q_norm.w), value(q_norm.b), value(k_norm.w), value(k_norm.b)};
}

ops::HeadNorm AttentionWeights::norm_gradients() const {
  const auto gradient = [](const Parameter* p) { return p != nullptr ? p->grad : Tensor(); };
  return {gradient(q_norm.w), gradient(q_norm.b), gradient(k_norm.w), gradient(k_norm.b)};
}

AttentionHalf::AttentionHalf(autograd::Tape& tape, const ModelConfig& c, int64_t index, const BlockWeights& w,
                             const TokenStream& stream, ActivationRef modulation)
    : Node("blocks." + std::to_string(index) + ".attn", w.in_arena_attention()),
      num_heads_(c.num_heads / stream.tensor.size),
      rotation_(c.position == Position::kRope ? ops::Rotation{c.grid_height(), c.grid_width()} : ops::Rotation{}),
      weights_(w.attention),
      adaLN_(w.adaLN),
      stream_(stream),
      modulation_(std::move(modulation)) {
  weights_.qkv.products = weights_.proj.products = adaLN_.products = stream.activations;
  const int64_t B = stream.batch, T = stream.tokens, C = c.hidden_size, own = C / stream.tensor.size;
  const DType half = stream.activations;
  // In inference inputs share their memory; that of all tokens has to last for as long as some are on a route.
  x_BTC = tape.keep(*this, stream.route < 0 ? "x" : "x_kept", {B, T, C});
  norm_ = ModulatedNorm(tape, *this, "1", c, weights_.input_norm, stream, stream.keep_costly,
                        stream.keep_cheap == KeepPolicy::kKeep);
  qkv_ = tape.keep(*this, "qkv", {B, T, 3 * own}, stream.keep_costly, half);
  attn_ = tape.keep(*this, "attn", {B, T, own}, stream.keep_costly, half);
  lse_ = tape.keep(*this, "lse", {B, num_heads_, T}, stream.keep_costly);
  proj_ = tape.keep(*this, "proj", {B, T, C}, stream.keep_costly, half);
  x_mid_BTC = tape.keep(*this, "x_mid", {B, T, C}, stream.keep_cheap);
  if (tape.mode() == autograd::Mode::kInference) return;
  dmod_ = tape.temporary("dmodulation", {B, kNumModulations * C});
  dh_BTC_ = tape.temporary("dh", {B, T, C}, stream.input_gradient());
  dproj_ = tape.temporary("dbranch", {B, T, C}, half);
  dattn_ = tape.temporary("dattn", {B, T, own}, half);
  dqkv_ = tape.temporary("dqkv", qkv_->shape, half);
  if (c.qk_norm == QkNorm::kNone) return;
  const int64_t terms = c.qk_norm == QkNorm::kLayer ? 4 : 2;
  dnorm_BH_ = tape.temporary("dqk_norm_of_heads", {B, num_heads_, terms, c.head_dim()});
  dnorm_ = tape.temporary("dqk_norm", {terms, c.head_dim()});
}

ops::LinearInput AttentionHalf::qkv_input(const Samples& s) const {
  return norm_.output(of(x_BTC, s), modulation(kShiftMsa, s), modulation(kScaleMsa, s), s);
}

ops::Rotation AttentionHalf::rotation(const Samples& s) const {
  ops::Rotation of_samples = rotation_;
  if (rotation_.exists()) of_samples.places = stream_.places(s);
  return of_samples;
}

void AttentionHalf::compute_x_mid(ops::Context& ctx, const Samples& s) const {
  ops::gate_residual_forward(ctx, of(x_BTC, s), modulation(kGateMsa, s), of(proj_, s), of(x_mid_BTC, s));
}

void AttentionHalf::compute(ops::Context& ctx, const Samples& s) const {
  norm_.forward(ctx, of(x_BTC, s), modulation(kShiftMsa, s), modulation(kScaleMsa, s), s);
  weights_.qkv.forward(ctx, qkv_input(s), of(qkv_, s));
  ops::attention_forward(ctx, of(qkv_, s), num_heads_, of(attn_, s), of(lse_, s), weights_.norm(), rotation(s));
  weights_.proj.forward_summed(ctx, stream_, of(attn_, s), of(proj_, s),
                               ops::then_gate_residual(of(x_BTC, s), modulation(kGateMsa, s), of(x_mid_BTC, s)));
}

void AttentionHalf::finish_norm_gradients(ops::Context& ctx, Gradients gradients) const {
  ops::sum_over_heads(ctx, dnorm_BH_->tensor, dnorm_->tensor);
  stream_.tensor.sum_over_ranks(dnorm_->tensor);
  ops::set_gradients(ctx, dnorm_->tensor, weights_.norm_gradients(), gradients == Gradients::kAdd);
}

void AttentionHalf::backward(ops::Context& ctx, Gradients gradients) {
  ctx.over_samples(stream_.batch, [&](ops::Context& part, const Samples& s) {
    const Tensor dx = of(stream_.dx_BTC, s), dproj = of(dproj_, s), dattn = of(dattn_, s), dqkv = of(dqkv_, s);
    ops::gate_residual_backward(part, dx, modulation(kGateMsa, s), of(proj_, s), dproj, dmodulation(kGateMsa, s));
    weights_.proj.backward_data(part, dproj, dattn);
    ops::attention_backward(part, of(qkv_, s), num_heads_, of(attn_, s), of(lse_, s), dattn, dqkv, weights_.norm(),
                            dnorm_BH_ != nullptr ? of(dnorm_BH_, s) : Tensor(), rotation(s));
    weights_.qkv.backward_data_summed(part, stream_, dqkv, of(dh_BTC_, s));
    norm_.backward(part, of(x_BTC, s), modulation(kShiftMsa, s), modulation(kScaleMsa, s), of(dh_BTC_, s), dx,
                   dmodulation(kShiftMsa, s), dmodulation(kScaleMsa, s), s);
  });
  if (dnorm_ != nullptr) finish_norm_gradients(ctx, gradients);
  const Samples all{0, stream_.batch};
  norm_.finish_gradients(ctx, modulation(kScaleMsa, all), dmodulation(kScaleMsa, all), gradients);
  ctx.without_barriers([&](ops::Context& each) {
    weights_.proj.backward_weight(each, attn_->tensor, dproj_->tensor, gradients);
    weights_.qkv.backward_weight(each, qkv_input(all), dqkv_->tensor, gradients);
    adaLN_.backward_weight_of_samples(each, stream_, stream_.cond_BC->tensor, dmod_->tensor, gradients);
    adaLN_.add_backward_data(each, dmod_->tensor, stream_.dcond_BC->tensor);
  });
}

}  // namespace ditrain::nn
