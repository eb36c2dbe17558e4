// U-ViT (Bao et al., "All are Worth Words: A ViT Backbone for Diffusion Models", arXiv 2209.12152): time and label are
// tokens before those of the image, blocks are pre-norm without modulation, and the output of each block of the first
// half joins the input of its mirror image in the second half (concatenation and a linear layer). Names and state dict
// are those of the public implementation (baofff/U-ViT, libs/uvit.py), whose depth leaves out the block in the middle:
//   x = cat(label_emb[y], timestep_embedding(t), patch_embed(image)) + pos_embed      TokenEmbed
//   x = skip_linear(cat(x, skip)), in the second half                                 SkipLinear
//   x = x + attn(norm1(x))                                                            UvitAttention
//   x = x + mlp(norm2(x))                                                             UvitMlp
//   out = final_layer(unpatchify(decoder_pred(norm(x)) of the image's tokens))        UvitOutput
// Kept for backward, per block and in units of B T C: 10 values (12 with a skip: its input and the skip's gradient).
// Legend as in layers.hpp; E extra tokens, L tokens of the image, T = E + L.
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/nn/image_input.hpp"
#include "ditrain/ops/attention.hpp"
#include "ditrain/ops/conv3x3.hpp"
#include "ditrain/ops/embedding.hpp"
#include "ditrain/ops/tokens.hpp"
#include "models.hpp"

namespace ditrain::nn {
namespace {

constexpr float kEps = 1e-5f;  // torch.nn.LayerNorm
constexpr double kDeviation = 0.02;

int64_t extra_tokens(const ModelConfig& c) { return c.num_classes > 0 ? 2 : 1; }
int64_t all_tokens(const ModelConfig& c) { return extra_tokens(c) + c.tokens(); }

struct AffineNormWeights {
  Parameter *w = nullptr, *b = nullptr;
};
AffineNormWeights declare_affine_norm(const Declarations& module, const std::string& name, const ModelConfig& c) {
  const Shape C{c.hidden_size};
  const ParameterGroup group = ParameterGroup::kNorm;
  Parameter* w =
      module.parameter({.name = name + ".weight", .full_shape = C, .initial = Initial::constant(1), .group = group});
  return {w, module.parameter({.name = name + ".bias", .full_shape = C, .group = group})};
}

/// A LayerNorm with weight and bias as its node uses it, fused into the product behind it as DiT's norms are
/// (nn/norm.hpp).
class AffineNorm {
 public:
  AffineNorm(autograd::Tape& tape, autograd::Node& node, const std::string& suffix, const ModelConfig& c,
             const AffineNormWeights& weights, const TokenStream& stream, KeepPolicy statistics, bool keeps_output)
      : weights_(weights) {
    const int64_t B = stream.batch, T = all_tokens(c), C = c.hidden_size;
    if (keeps_output) h_BTC_ = tape.keep(node, "h" + suffix, {B, T, C}, KeepPolicy::kKeep, stream.activations);
    mean_ = tape.keep(node, "mean" + suffix, {B, T}, statistics);
    rstd_ = tape.keep(node, "rstd" + suffix, {B, T}, statistics);
    joined_ = tape.temporary("norm_affine", {B, 2 * C});
    if (tape.mode() == autograd::Mode::kTraining) djoined_ = tape.temporary("dnorm_affine", {B, 2 * C});
  }

  /// Weight and bias as the ops take them: other norms use the same memory. Before backward and output in backward.
  void join(ops::Context& ctx, const Samples& s) const {
    ops::join_affine(ctx, weights_.w->value, weights_.b->value, of(joined_, s));
  }
  void forward(ops::Context& ctx, const Tensor& x, const Samples& s) const {
    join(ctx, s);
    const Tensor mean = of(mean_, s), rstd = of(rstd_, s);
    if (h_BTC_ != nullptr)
      ops::layer_norm_modulate_forward(ctx, x, shift(s), scale(s), of(h_BTC_, s), mean, rstd, ops::NormKind::kLayer,
                                       kEps);
    else
      ops::layer_norm_statistics(ctx, x, mean, rstd, ops::NormKind::kLayer, kEps);
  }
  ops::LinearInput output(const Tensor& x, const Samples& s) const {
    if (h_BTC_ != nullptr) return of(h_BTC_, s);
    return {x, ops::NormTerms{of(mean_, s), of(rstd_, s), shift(s), scale(s)}};
  }
  /// dx is added to.
  void backward(ops::Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dx, const Samples& s) const {
    const Tensor djoined = of(djoined_, s);
    ops::layer_norm_modulate_backward(ctx, x, of(mean_, s), of(rstd_, s), scale(s), dy, dx, {djoined, 0}, {djoined, 1});
  }
  /// Once all samples have gone backward.
  void finish_gradients(ops::Context& ctx, Gradients gradients) const {
    ops::split_affine_gradient(ctx, djoined_->tensor, weights_.w->grad, weights_.b->grad, gradients == Gradients::kAdd);
  }

 private:
  ops::Chunk shift(const Samples& s) const { return {of(joined_, s), 0}; }
  ops::Chunk scale(const Samples& s) const { return {of(joined_, s), 1}; }

  AffineNormWeights weights_;
  ActivationRef h_BTC_, mean_, rstd_, joined_, djoined_;
};

struct TokenWeights {
  Parameter* pos_embed;            // [1, T, C]
  LinearWeights proj;              // patch_embed.proj [C, in + condition channels, P, P]
  Parameter* label_emb = nullptr;  // [classes + 1, C]; null: no labels
  std::vector<Parameter*> in_arena() const {
    std::vector<Parameter*> all{pos_embed, proj.w, proj.b};
    if (label_emb != nullptr) all.push_back(label_emb);
    return all;
  }
};
TokenWeights declare_tokens(const Declarations& model, const ModelConfig& c) {
  const ParameterGroup group = ParameterGroup::kEmbedding;
  const int64_t C = c.hidden_size, channels = c.in_channels + c.condition_channels;
  TokenWeights w;
  w.pos_embed = model.parameter({.name = "pos_embed",
                                 .full_shape = {1, all_tokens(c), C},
                                 .initial = Initial::normal(kDeviation),
                                 .group = group});
  const Initial like_conv = Initial::uniform(
      1 / std::sqrt(double(channels * c.patch_size * c.patch_size)));  // torch.nn.Conv2d, weight and bias
  w.proj = model.linear({.name = "patch_embed.proj",
                         .weight = {C, channels, c.patch_size, c.patch_size},
                         .initial = like_conv,
                         .group = group,
                         .initial_bias = like_conv});
  if (c.num_classes > 0)
    w.label_emb = model.parameter({.name = "label_emb.weight",
                                   .full_shape = {c.label_rows(), C},
                                   .initial = Initial::normal(1),  // torch.nn.Embedding
                                   .group = group});
  return w;
}

class TokenEmbed final : public autograd::Node {
 public:
  TokenEmbed(autograd::Tape& tape, const ModelConfig& c, const TokenWeights& weights, const PassRecord& pass)
      : Node("tokens", weights.in_arena()),
        patch_(c.patch_size),
        weights_(weights),
        stream_(pass.stream),
        input_(tape, *this, c, pass.stream) {
    const int64_t B = stream_.batch, C = c.hidden_size, L = c.tokens();
    patches_ = tape.temporary("patches", {B, L, C});
    time_ = tape.temporary("time_token", {B, C});
    if (weights_.label_emb != nullptr) label_ = tape.temporary("label_token", {B, C});
    if (!pass.options.want_input_gradient) return;
    dimage = tape.temporary("dimage", input_.shape());
    dpixels_ = tape.temporary("dpixels", {B, L, input_.shape()[1] * patch_ * patch_});
  }
  void set_output(ActivationRef x_BTC) { x_BTC_ = std::move(x_BTC); }

  void forward(ops::Context& ctx) override {
    weights_.proj.forward(ctx, ops::LinearInput::patches(input_.join(ctx), patch_), patches_->tensor);
    ops::timestep_embedding(ctx, stream_.inputs->t, time_->tensor);
    if (label_ != nullptr) ops::embedding_forward(ctx, weights_.label_emb->value, labels(), label_->tensor);
    ops::join_tokens(ctx, extras(time_->tensor), patches_->tensor, weights_.pos_embed->value, x_BTC_->tensor);
  }

  void backward(ops::Context& ctx, Gradients gradients) override {
    ops::split_tokens_gradient(ctx, stream_.dx_BTC->tensor, extras(Tensor()), patches_->tensor,
                               weights_.pos_embed->grad, gradients == Gradients::kAdd);
    if (label_ != nullptr) {
      const Tensor& dtable = weights_.label_emb->grad;
      if (gradients == Gradients::kOverwrite) ops::zero(ctx, dtable);  // most rows get nothing
      ops::embedding_backward(ctx, labels(), label_->tensor, dtable);
    }
    weights_.proj.backward_weight(ctx, ops::LinearInput::patches(input_.images(), patch_), patches_->tensor, gradients);
    if (dimage == nullptr) return;
    weights_.proj.backward_data(ctx, patches_->tensor, dpixels_->tensor);
    ops::patchify_backward(ctx, dpixels_->tensor, patch_, dimage->tensor);
  }

  const ActivationRef& image() const { return input_.noisy; }
  ActivationRef dimage;

 private:
  std::vector<int64_t> labels() const {
    std::vector<int64_t> all;
    for (const Condition& condition : stream_.inputs->conditions) all.push_back(condition.label);
    return all;
  }
  std::vector<Tensor> extras(const Tensor& time) const {
    if (label_ == nullptr) return {time};
    return {label_->tensor, time};
  }

  int64_t patch_;
  TokenWeights weights_;
  TokenStream stream_;
  ImageInput input_;
  ActivationRef patches_, time_, label_, x_BTC_;  // of patches and label also the gradients
  ActivationRef dpixels_;
};

struct UvitBlockWeights {
  AffineNormWeights norm1, norm2;
  LinearWeights qkv, proj, fc1, fc2;
  LinearWeights skip_linear = {};  // [C, 2C]; none in the first half
  std::vector<Parameter*> of_attention() const { return {norm1.w, norm1.b, qkv.w, proj.w, proj.b}; }
  std::vector<Parameter*> of_mlp() const { return {norm2.w, norm2.b, fc1.w, fc1.b, fc2.w, fc2.b}; }
};
UvitBlockWeights declare_uvit_block(const Declarations& block, const ModelConfig& c, bool skip) {
  const int64_t C = c.hidden_size, F = c.mlp_size();
  const Initial normal = Initial::normal(kDeviation);
  UvitBlockWeights w;
  w.norm1 = declare_affine_norm(block, "norm1", c);
  w.qkv = block.linear({.name = "attn.qkv",
                        .weight = {3 * C, C},
                        .initial = normal,
                        .stacked = 3,
                        .split = WeightSplit::kThirds,
                        .has_bias = false});
  w.proj = block.linear({.name = "attn.proj", .weight = {C, C}, .initial = normal, .split = WeightSplit::kInputs});
  w.norm2 = declare_affine_norm(block, "norm2", c);
  w.fc1 = block.linear({.name = "mlp.fc1", .weight = {F, C}, .initial = normal, .split = WeightSplit::kOutputs});
  w.fc2 = block.linear({.name = "mlp.fc2", .weight = {C, F}, .initial = normal, .split = WeightSplit::kInputs});
  if (skip) w.skip_linear = block.linear({.name = "skip_linear", .weight = {C, 2 * C}, .initial = normal});
  return w;
}

class UvitAttention final : public autograd::Node {
 public:
  /// x: what the block before has written for others as well; null: this node has its own input.
  UvitAttention(autograd::Tape& tape, const std::string& block, const ModelConfig& c, const UvitBlockWeights& w,
                const TokenStream& stream, ActivationRef x)
      : Node(block + ".attn", w.of_attention()),
        num_heads_(c.num_heads / stream.tensor.size),
        qkv_weights_(w.qkv),
        proj_weights_(w.proj),
        stream_(stream),
        x_BTC(x != nullptr ? std::move(x) : tape.keep(*this, "x", {stream.batch, all_tokens(c), c.hidden_size})),
        norm_(tape, *this, "1", c, w.norm1, stream, stream.keep_costly, stream.keep_cheap == KeepPolicy::kKeep) {
    qkv_weights_.products = proj_weights_.products = stream.activations;
    const int64_t B = stream.batch, T = all_tokens(c), C = c.hidden_size, own = C / stream.tensor.size;
    const DType half = stream.activations;
    qkv_ = tape.keep(*this, "qkv", {B, T, 3 * own}, stream.keep_costly, half);
    attn_ = tape.keep(*this, "attn", {B, T, own}, stream.keep_costly, half);
    lse_ = tape.keep(*this, "lse", {B, num_heads_, T}, stream.keep_costly);
    x_mid_BTC = tape.keep(*this, "x_mid", {B, T, C}, stream.keep_costly);
    if (tape.mode() == autograd::Mode::kInference) return;
    dh_BTC_ = tape.temporary("dh", {B, T, C}, stream.input_gradient());
    dattn_ = tape.temporary("dattn", attn_->shape, half);
    dqkv_ = tape.temporary("dqkv", qkv_->shape, half);
  }
  int64_t samples() const override { return stream_.batch; }
  void forward_of(ops::Context& ctx, const Samples& s) override { compute(ctx, s); }

  void compute(ops::Context& ctx, const Samples& s) const {
    norm_.forward(ctx, of(x_BTC, s), s);
    qkv_weights_.forward(ctx, norm_.output(of(x_BTC, s), s), of(qkv_, s));
    ops::attention_forward(ctx, of(qkv_, s), num_heads_, of(attn_, s), of(lse_, s));
    proj_weights_.forward_summed(ctx, stream_, of(attn_, s), of(x_mid_BTC, s), {});
    ops::add(ctx, of(x_BTC, s), of(x_mid_BTC, s));
  }

  void backward(ops::Context& ctx, Gradients gradients) override {
    ctx.over_samples(stream_.batch, [&](ops::Context& part, const Samples& s) {
      norm_.join(part, s);
      proj_weights_.backward_data(part, of(stream_.dx_BTC, s), of(dattn_, s));
      ops::attention_backward(part, of(qkv_, s), num_heads_, of(attn_, s), of(lse_, s), of(dattn_, s), of(dqkv_, s));
      qkv_weights_.backward_data_summed(part, stream_, of(dqkv_, s), of(dh_BTC_, s));
    });
    ctx.without_barriers([&](ops::Context& each) {
      proj_weights_.backward_weight(each, attn_->tensor, stream_.dx_BTC->tensor, gradients);
      qkv_weights_.backward_weight(each, norm_.output(x_BTC->tensor, {0, stream_.batch}), dqkv_->tensor, gradients);
    });
    ctx.over_samples(stream_.batch, [&](ops::Context& part, const Samples& s) {
      norm_.backward(part, of(x_BTC, s), of(dh_BTC_, s), of(stream_.dx_BTC, s), s);
    });
    norm_.finish_gradients(ctx, gradients);
  }

 private:
  int64_t num_heads_;
  LinearWeights qkv_weights_, proj_weights_;
  TokenStream stream_;

 public:
  ActivationRef x_BTC;      // input, written by the node before
  ActivationRef x_mid_BTC;  // x + attn(norm1(x))

 private:
  AffineNorm norm_;
  ActivationRef qkv_, attn_, lse_, dh_BTC_, dattn_, dqkv_;
};

class UvitMlp final : public autograd::Node {
 public:
  UvitMlp(autograd::Tape& tape, const std::string& block, const ModelConfig& c, const UvitBlockWeights& w,
          const TokenStream& stream, UvitAttention& first_half)
      : Node(block + ".mlp", w.of_mlp()),
        fc1_weights_(w.fc1),
        fc2_weights_(w.fc2),
        stream_(stream),
        first_half_(first_half),
        norm_(tape, *this, "2", c, w.norm2, stream, stream.keep_costly, stream.keep_cheap == KeepPolicy::kKeep) {
    fc1_weights_.products = fc2_weights_.products = stream.activations;
    const Shape BTF{stream.batch, all_tokens(c), c.mlp_size() / stream.tensor.size};
    fc1_ = tape.keep(*this, "fc1", BTF, stream.keep_costly, stream.activations);
    gelu_ = tape.keep(*this, "gelu", BTF, stream.keep_cheap, stream.activations);
    if (tape.mode() == autograd::Mode::kInference) return;
    dh_BTC_ = tape.temporary("dh", {stream.batch, all_tokens(c), c.hidden_size}, stream.input_gradient());
    dfc1_ = tape.temporary("dfc1", BTF, stream.activations);
  }
  void set_output(ActivationRef x_BTC) { x_out_BTC_ = std::move(x_BTC); }
  /// What comes back over the skip connection that begins at the output.
  void set_skip_gradient(ActivationRef dskip_BTC) { dskip_BTC_ = std::move(dskip_BTC); }
  int64_t samples() const override { return stream_.batch; }

  void forward_of(ops::Context& ctx, const Samples& s) override {
    compute(ctx, s);
    fc2_weights_.forward_summed(ctx, stream_, of(gelu_, s), of(x_out_BTC_, s), {});
    ops::add(ctx, of(first_half_.x_mid_BTC, s), of(x_out_BTC_, s));
  }

  /// In Recompute::kBlock it also recomputes the attention half, of which only the input is stored.
  void recompute(ops::Context& ctx) override {
    ctx.over_samples(stream_.batch, [&](ops::Context& part, const Samples& s) {
      if (fc1_->policy == KeepPolicy::kKeep) return ops::gelu_erf_forward(part, of(fc1_, s), of(gelu_, s));
      first_half_.compute(part, s);
      compute(part, s);
    });
  }

  void backward(ops::Context& ctx, Gradients gradients) override {
    const ActivationRef& x_BTC = first_half_.x_mid_BTC;
    ctx.over_samples(stream_.batch, [&](ops::Context& part, const Samples& s) {
      const Tensor dx = of(stream_.dx_BTC, s), dfc1 = of(dfc1_, s);
      if (dskip_BTC_ != nullptr) ops::add(part, of(dskip_BTC_, s), dx);
      norm_.join(part, s);
      fc2_weights_.backward_data(part, dx, dfc1);
      ops::gelu_erf_backward(part, of(fc1_, s), dfc1, dfc1);
      fc1_weights_.backward_data_summed(part, stream_, dfc1, of(dh_BTC_, s));
    });
    ctx.without_barriers([&](ops::Context& each) {
      fc2_weights_.backward_weight(each, gelu_->tensor, stream_.dx_BTC->tensor, gradients);
      fc1_weights_.backward_weight(each, norm_.output(x_BTC->tensor, {0, stream_.batch}), dfc1_->tensor, gradients);
    });
    ctx.over_samples(stream_.batch, [&](ops::Context& part, const Samples& s) {
      norm_.backward(part, of(x_BTC, s), of(dh_BTC_, s), of(stream_.dx_BTC, s), s);
    });
    norm_.finish_gradients(ctx, gradients);
  }

 private:
  // Up to the activation.
  void compute(ops::Context& ctx, const Samples& s) const {
    const Tensor x = of(first_half_.x_mid_BTC, s);
    norm_.forward(ctx, x, s);
    fc1_weights_.forward(ctx, norm_.output(x, s), of(fc1_, s));
    ops::gelu_erf_forward(ctx, of(fc1_, s), of(gelu_, s));
  }

  LinearWeights fc1_weights_, fc2_weights_;
  TokenStream stream_;
  UvitAttention& first_half_;
  AffineNorm norm_;
  ActivationRef fc1_, gelu_, x_out_BTC_, dskip_BTC_, dh_BTC_, dfc1_;
};

class SkipLinear final : public autograd::Node {
 public:
  /// skip: the output of the block in the first half, which another node keeps.
  SkipLinear(autograd::Tape& tape, const std::string& block, const ModelConfig& c, const LinearWeights& weights,
             const TokenStream& stream, ActivationRef skip_BTC)
      : Node(block + ".skip_linear", {weights.w, weights.b}),
        weights_(weights),
        stream_(stream),
        skip_BTC_(std::move(skip_BTC)) {
    weights_.products = stream.activations;
    const Shape BTC{stream.batch, all_tokens(c), c.hidden_size};
    x_BTC = tape.keep(*this, "x", BTC);
    both_ = tape.temporary("x_and_skip", {stream.batch, all_tokens(c), 2 * c.hidden_size});
    if (tape.mode() == autograd::Mode::kTraining) dskip_BTC = tape.carry(*this, "dskip", BTC);
  }
  void set_output(ActivationRef x_BTC) { x_out_BTC_ = std::move(x_BTC); }
  int64_t samples() const override { return stream_.batch; }

  void forward_of(ops::Context& ctx, const Samples& s) override {
    ops::concatenate(ctx, of(x_BTC, s), of(skip_BTC_, s), of(both_, s));
    weights_.forward(ctx, of(both_, s), of(x_out_BTC_, s));
  }

  void backward(ops::Context& ctx, Gradients gradients) override {
    ctx.over_samples(stream_.batch, [&](ops::Context& part, const Samples& s) {
      ops::concatenate(part, of(x_BTC, s), of(skip_BTC_, s), of(both_, s));
    });
    // Both operands are f32: in a bf16 run the product is bf16 as those of other blocks.
    ops::linear_backward_weight(ctx, both_->tensor, stream_.dx_BTC->tensor, weights_.w->grad, weights_.b->grad,
                                gradients == Gradients::kAdd, weights_.products);
    ctx.over_samples(stream_.batch, [&](ops::Context& part, const Samples& s) {
      weights_.backward_data(part, of(stream_.dx_BTC, s), of(both_, s));
      ops::split(part, of(both_, s), of(stream_.dx_BTC, s), of(dskip_BTC, s));
    });
  }

  ActivationRef x_BTC;      // input, written by the block before
  ActivationRef dskip_BTC;  // gradient of the skip, for the block where it begins

 private:
  LinearWeights weights_;
  TokenStream stream_;
  ActivationRef skip_BTC_, both_, x_out_BTC_;  // both: x | skip, then its gradient
};

struct UvitOutputWeights {
  AffineNormWeights norm;
  LinearWeights decoder_pred;  // [P P O, C]
  LinearWeights conv;          // final_layer [O, O, 3, 3]
  std::vector<Parameter*> in_arena() const { return {norm.w, norm.b, decoder_pred.w, decoder_pred.b, conv.w, conv.b}; }
};
UvitOutputWeights declare_uvit_output(const Declarations& model, const ModelConfig& c) {
  const int64_t O = c.out_channels();
  const Initial like_conv = Initial::uniform(1 / std::sqrt(9.0 * double(O)));
  UvitOutputWeights w;
  w.norm = declare_affine_norm(model, "norm", c);
  w.decoder_pred = model.linear({.name = "decoder_pred",
                                 .weight = {c.patch_size * c.patch_size * O, c.hidden_size},
                                 .initial = Initial::normal(kDeviation),
                                 .group = ParameterGroup::kOutput});
  w.conv = model.linear({.name = "final_layer",
                         .weight = {O, O, 3, 3},
                         .initial = like_conv,
                         .rows = ProductRows::kNone,
                         .group = ParameterGroup::kOutput,
                         .initial_bias = like_conv});
  return w;
}

class UvitOutput final : public autograd::Node {
 public:
  UvitOutput(autograd::Tape& tape, const ModelConfig& c, const UvitOutputWeights& w, const TokenStream& stream)
      : Node("output", w.in_arena()),
        patch_(c.patch_size),
        weights_(w),
        stream_(stream),
        x_BTC(tape.keep(*this, "x", {stream.batch, all_tokens(c), c.hidden_size})),
        norm_(tape, *this, "", c, w.norm, stream, KeepPolicy::kKeep, /*keeps_output=*/false) {
    weights_.decoder_pred.products = stream.activations;
    const int64_t B = stream.batch, columns = patch_ * patch_ * c.out_channels();
    pixels_ = tape.keep(*this, "pixels", {B, c.out_channels(), c.input_height, c.input_width});
    all_tokens_ = tape.temporary("all_tokens", {B, all_tokens(c), columns});
    tokens_ = tape.temporary("tokens", {B, c.tokens(), columns});
    out = tape.temporary("out", pixels_->shape);
    if (tape.mode() == autograd::Mode::kInference) return;
    dout = tape.temporary("dout", out->shape);
    dpixels_ = tape.temporary("dpixels_before_conv", out->shape);
    dh_BTC_ = tape.temporary("dh", x_BTC->shape, stream.input_gradient());
  }

  void forward(ops::Context& ctx) override {
    const Samples all{0, stream_.batch};
    norm_.forward(ctx, x_BTC->tensor, all);
    weights_.decoder_pred.forward(ctx, norm_.output(x_BTC->tensor, all), all_tokens_->tensor);
    ops::last_tokens(ctx, all_tokens_->tensor, tokens_->tensor);
    ops::unpatchify(ctx, tokens_->tensor, patch_, pixels_->tensor);
    ops::conv3x3_forward(ctx, pixels_->tensor, weights_.conv.w->value, weights_.conv.b->value, out->tensor);
  }

  /// Starts the gradient of the residual stream.
  void backward(ops::Context& ctx, Gradients gradients) override {
    const Samples all{0, stream_.batch};
    const Tensor &dtokens = tokens_->tensor, &dall = all_tokens_->tensor, &dx = stream_.dx_BTC->tensor;
    const LinearWeights& conv = weights_.conv;
    ops::conv3x3_backward_weight(ctx, pixels_->tensor, dout->tensor, conv.w->grad, conv.b->grad,
                                 gradients == Gradients::kAdd);
    ops::conv3x3_backward_data(ctx, dout->tensor, conv.w->value, dpixels_->tensor);
    ops::unpatchify_backward(ctx, dpixels_->tensor, patch_, dtokens);
    ops::last_tokens_gradient(ctx, dtokens, dall);
    norm_.join(ctx, all);
    weights_.decoder_pred.backward_data(ctx, dall, dh_BTC_->tensor);
    weights_.decoder_pred.backward_weight(ctx, norm_.output(x_BTC->tensor, all), dall, gradients);
    ops::zero(ctx, dx);
    norm_.backward(ctx, x_BTC->tensor, dh_BTC_->tensor, dx, all);
    norm_.finish_gradients(ctx, gradients);
  }

 private:
  int64_t patch_;
  UvitOutputWeights weights_;
  TokenStream stream_;

 public:
  ActivationRef x_BTC;  // input, written by the last block
  ActivationRef out, dout;

 private:
  AffineNorm norm_;
  ActivationRef pixels_, all_tokens_, tokens_, dpixels_, dh_BTC_;
};

class Uvit final : public Network {
 public:
  Uvit(const Declarations& model, const ModelConfig& config)
      : config_(config),
        tokens_(declare_tokens(model, config)),
        blocks_(declare_blocks(model)),
        output_(declare_uvit_output(model, config)) {}

  std::vector<Parameter*> in_arena() const override {
    std::vector<Parameter*> all = tokens_.in_arena();
    const auto append = [&](const std::vector<Parameter*>& more) { all.insert(all.end(), more.begin(), more.end()); };
    for (const UvitBlockWeights& block : blocks_) {
      if (block.skip_linear.w != nullptr) append({block.skip_linear.w, block.skip_linear.b});
      append(block.of_attention());
      append(block.of_mlp());
    }
    append(output_.in_arena());
    return all;
  }

  double forward_macs(const Routes&) const override {  // it has no routes
    const double T = double(all_tokens(config_)), C = double(config_.hidden_size);
    double macs = double(config_.depth) * 2 * T * T * C;
    for (const Parameter* p : in_arena())
      if (p->product == ProductRows::kTokens)
        macs += (p == tokens_.proj.w ? double(config_.tokens()) : T) * double(num_elements(p->full_shape));
    return macs + double(num_elements(output_.conv.w->full_shape)) * double(config_.pixels());
  }

  ProductReads block_reads() const override {
    const UvitBlockWeights& block = blocks_.front();
    ProductReads reads;
    for (const Parameter* p : {block.qkv.w, block.proj.w, block.fc1.w, block.fc2.w}) {
      const int64_t values = num_elements(p->full_shape);
      reads.weights += double(values);
      reads.inputs += double(all_tokens(config_) * (values / p->full_shape[0]));
    }
    return reads;
  }

  void record(PassRecord& pass) const override {
    autograd::Tape& tape = pass.tape;
    const bool training = tape.mode() == autograd::Mode::kTraining;
    const Shape BTC{pass.stream.batch, all_tokens(config_), config_.hidden_size};
    if (training) pass.stream.dx_BTC = tape.temporary("dx", BTC);
    auto& embed = tape.record<TokenEmbed>(config_, tokens_, pass);
    pass.image = embed.image(), pass.dimage = embed.dimage;
    // A node's output is the input that the next node keeps.
    std::function<void(ActivationRef)> connect = [&embed](ActivationRef x) { embed.set_output(std::move(x)); };
    struct Skip {
      ActivationRef x_BTC;
      UvitMlp* from;
    };
    std::vector<Skip> skips;
    const auto half = int64_t(blocks_.size()) / 2;
    UvitMlp* last = nullptr;
    for (int64_t i = 0; i < int64_t(blocks_.size()); ++i) {
      const UvitBlockWeights& weights = blocks_[size_t(i)];
      const std::string name = name_of(i);
      pass.keep_of_block(i);
      if (i > half) {
        auto& skip = tape.record<SkipLinear>(name, config_, weights.skip_linear, pass.stream, skips.back().x_BTC);
        if (training) skips.back().from->set_skip_gradient(skip.dskip_BTC);
        skips.pop_back();
        connect(skip.x_BTC);
        connect = [&skip](ActivationRef x) { skip.set_output(std::move(x)); };
      }
      // In inference, where inputs share their memory, a skip has memory of its own until it is read.
      const bool after_skip = i > 0 && i <= half;
      ActivationRef own;
      if (after_skip && !training) own = tape.temporary("skip." + std::to_string(i - 1), BTC);
      auto& attention = tape.record<UvitAttention>(name, config_, weights, pass.stream, own);
      if (after_skip) skips.push_back({attention.x_BTC, last});
      connect(attention.x_BTC);
      last = &tape.record<UvitMlp>(name, config_, weights, pass.stream, attention);
      connect = [last](ActivationRef x) { last->set_output(std::move(x)); };
    }
    auto& output = tape.record<UvitOutput>(config_, output_, pass.stream);
    connect(output.x_BTC);
    pass.out = output.out, pass.dout = output.dout;
  }

 private:
  std::string name_of(int64_t block) const {
    const int64_t half = config_.depth / 2;
    if (block == half) return "mid_block";
    return block < half ? "in_blocks." + std::to_string(block) : "out_blocks." + std::to_string(block - half - 1);
  }
  std::vector<UvitBlockWeights> declare_blocks(const Declarations& model) const {
    std::vector<UvitBlockWeights> blocks;
    for (int64_t i = 0; i < config_.depth; ++i)
      blocks.push_back(declare_uvit_block(model.in(name_of(i)), config_, /*skip=*/i > config_.depth / 2));
    return blocks;
  }

  ModelConfig config_;
  TokenWeights tokens_;
  std::vector<UvitBlockWeights> blocks_;
  UvitOutputWeights output_;
};

}  // namespace

void check_uvit(const ModelConfig& c) {
  require_model(c.depth % 2 == 1 && c.depth >= 3, "model.depth of a U-ViT", std::to_string(c.depth),
                "odd, at least 3: as many blocks before the one in the middle as behind it");
  const auto none = [](bool ok, const char* key, std::string_view got, const char* only) {
    require_model(ok, std::string(key) + " of a U-ViT", std::string(got), only);
  };
  none(c.patch_overlap == 0, "model.patch_overlap", std::to_string(c.patch_overlap),
       "0: its last layer is a convolution over borders of patches");
  none(c.patch_bottleneck == 0, "model.patch_bottleneck", std::to_string(c.patch_bottleneck), "0");
  none(c.metadata.empty(), "model.metadata", std::to_string(c.metadata.size()) + " numbers", "none");
  none(c.norm == Norm::kLayer, "model.norm", word_of(c.norm), "layer");
  none(c.mlp == Mlp::kGelu, "model.mlp", word_of(c.mlp), "gelu");
  none(c.qk_norm == QkNorm::kNone, "model.qk_norm", word_of(c.qk_norm), "none");
  none(c.position == Position::kSincos, "model.position", word_of(c.position),
       "the default: its table of positions is learned");
}

std::unique_ptr<Network> make_uvit(const Declarations& model, const ModelConfig& config) {
  return std::make_unique<Uvit>(model, config);
}

}  // namespace ditrain::nn
