#include "ditrain/nn/patch_embed.hpp"

#include <cmath>

#include "ditrain/ops/embedding.hpp"

namespace ditrain::nn {

// The table is a parameter of the model itself, hence before its modules. diffusers computes it. Rotary embedding
// stands in its place (LightningDiT's models have both).
PatchEmbedWeights declare_patch_embed(const Declarations& model, const ModelConfig& c) {
  PatchEmbedWeights w;
  if (c.position == Position::kSincos)
    w.pos_embed = model.parameter({.name = "pos_embed",
                                   .full_shape = {1, c.tokens(), c.hidden_size},
                                   .initial = Initial::from_table([c] {
                                     return sincos_position_table(c.hidden_size, c.grid_height(), c.grid_width());
                                   }),
                                   .trainable = false});
  const int64_t N = c.patch_bottleneck, K = c.patch_side();
  const Shape weight{N > 0 ? N : c.hidden_size, c.in_channels + c.condition_channels, K, K};
  const ParameterGroup group = ParameterGroup::kEmbedding;
  if (N == 0) {
    w.proj =
        model.linear({.name = "x_embedder.proj", .weight = weight, .group = group, .diffusers = {"pos_embed.proj"}});
    return w;
  }
  w.proj = model.linear({.name = "x_embedder.proj1", .weight = weight, .group = group, .has_bias = false});
  w.widen = model.linear({.name = "x_embedder.proj2", .weight = {c.hidden_size, N, 1, 1}, .group = group});
  return w;
}

std::vector<Parameter*> PatchEmbedWeights::in_arena() const {
  if (widen.w == nullptr) return {proj.w, proj.b};
  return {proj.w, widen.w, widen.b};
}

PatchEmbed::PatchEmbed(autograd::Tape& tape, const ModelConfig& c, const PatchEmbedWeights& weights,
                       const TokenStream& stream)
    : Node("x_embedder", weights.in_arena()),
      patches_(c.patch_size, c.patch_overlap),
      weights_(weights),
      stream_(stream),
      input_(tape, *this, c, stream) {
  const int64_t B = stream.batch, T = c.tokens(), K = c.patch_side(), channels = c.in_channels + c.condition_channels;
  if (c.patch_overlap > 0) rows_ = tape.temporary("patches", {B, T, channels * K * K});
  if (c.patch_bottleneck == 0) return;
  narrow_BTN_ = tape.keep(*this, "bottleneck", {B, T, c.patch_bottleneck});
  if (tape.mode() == autograd::Mode::kTraining) dnarrow_BTN_ = tape.temporary("dbottleneck", narrow_BTN_->shape);
}

void PatchEmbed::want_input_gradient(autograd::Tape& tape) {
  const Shape& s = input_.shape();
  const int64_t P = patches_.size, K = patches_.side();
  dimage = tape.temporary("dimage", s);
  drows_ = tape.temporary("dpatches", {s[0], s[2] / P * (s[3] / P), s[1] * K * K});
}

ops::LinearInput PatchEmbed::gather(ops::Context& ctx, const Tensor& images) const {
  if (rows_ == nullptr) return ops::LinearInput::patches(images, patches_.size);
  ops::patchify(ctx, images, patches_, rows_->tensor);
  return rows_->tensor;
}

void PatchEmbed::forward(ops::Context& ctx) {
  const Tensor& x = x_BTC_->tensor;
  weights_.proj.forward(ctx, gather(ctx, input_.join(ctx)), narrow_BTN_ != nullptr ? narrow_BTN_->tensor : x);
  if (narrow_BTN_ != nullptr) weights_.widen.forward(ctx, narrow_BTN_->tensor, x);
  if (weights_.pos_embed != nullptr) ops::add_position(ctx, weights_.pos_embed->value, x);
}

void PatchEmbed::backward(ops::Context& ctx, Gradients gradients) {
  Tensor dy = stream_.dx_BTC->tensor;
  if (narrow_BTN_ != nullptr) {
    weights_.widen.backward_weight(ctx, narrow_BTN_->tensor, dy, gradients);
    weights_.widen.backward_data(ctx, dy, dnarrow_BTN_->tensor);
    dy = dnarrow_BTN_->tensor;
  }
  weights_.proj.backward_weight(ctx, gather(ctx, input_.images()), dy, gradients);
  if (dimage == nullptr) return;
  weights_.proj.backward_data(ctx, dy, drows_->tensor);
  ops::patchify_backward(ctx, drows_->tensor, patches_, dimage->tensor);
}

std::vector<float> sincos_position_table(int64_t width, int64_t grid_height, int64_t grid_width) {
  const int64_t quarter = width / 4;
  std::vector<float> table;
  table.reserve(size_t(grid_height * grid_width * width));
  for (int64_t row = 0; row < grid_height; ++row)
    for (int64_t column = 0; column < grid_width; ++column)
      for (const int64_t position : {column, row})
        for (double (*wave)(double) : {+[](double a) { return std::sin(a); }, +[](double a) { return std::cos(a); }})
          for (int64_t k = 0; k < quarter; ++k)
            table.push_back(float(wave(double(position) * std::pow(10000.0, -double(k) / double(quarter)))));
  return table;
}

}  // namespace ditrain::nn
