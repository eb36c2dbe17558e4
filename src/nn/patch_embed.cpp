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
  w.proj = model.linear({.name = "x_embedder.proj",
                         .weight = {c.hidden_size, c.in_channels, c.patch_size, c.patch_size},
                         .group = ParameterGroup::kEmbedding,
                         .diffusers = {"pos_embed.proj"}});
  return w;
}

PatchEmbed::PatchEmbed(autograd::Tape& tape, const ModelConfig& c, const PatchEmbedWeights& weights,
                       const TokenStream& stream)
    : Node("x_embedder", weights.in_arena()), patch_(c.patch_size), weights_(weights), stream_(stream) {
  image = tape.keep(*this, "image", {stream.batch, c.in_channels, c.input_height, c.input_width});
}

void PatchEmbed::want_input_gradient(autograd::Tape& tape) {
  dimage = tape.temporary("dimage", image->shape);
  dpatches_ = tape.temporary("dpatches", {image->shape[0], image->shape[2] / patch_ * (image->shape[3] / patch_),
                                          image->shape[1] * patch_ * patch_});
}

void PatchEmbed::forward(ops::Context& ctx) {
  weights_.proj.forward(ctx, ops::LinearInput::patches(image->tensor, patch_), x_BTC_->tensor);
  if (weights_.pos_embed != nullptr) ops::add_position(ctx, weights_.pos_embed->value, x_BTC_->tensor);
}

void PatchEmbed::backward(ops::Context& ctx, Gradients gradients) {
  weights_.proj.backward_weight(ctx, ops::LinearInput::patches(image->tensor, patch_), stream_.dx_BTC->tensor,
                                gradients);
  if (dimage == nullptr) return;
  weights_.proj.backward_data(ctx, stream_.dx_BTC->tensor, dpatches_->tensor);
  ops::patchify_inverse(ctx, dpatches_->tensor, patch_, dimage->tensor);
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
