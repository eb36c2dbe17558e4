#include "ditrain/nn/patch_embed.hpp"

#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
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
                         .weight = {c.hidden_size, c.in_channels + c.condition_channels, c.patch_size, c.patch_size},
                         .group = ParameterGroup::kEmbedding,
                         .diffusers = {"pos_embed.proj"}});
  return w;
}

PatchEmbed::PatchEmbed(autograd::Tape& tape, const ModelConfig& c, const PatchEmbedWeights& weights,
                       const TokenStream& stream)
    : Node("x_embedder", weights.in_arena()), patch_(c.patch_size), weights_(weights), stream_(stream) {
  image = tape.keep(*this, "image", {stream.batch, c.in_channels, c.input_height, c.input_width});
  if (c.condition_channels > 0)
    given_ = tape.keep(*this, "image_and_condition",
                       {stream.batch, c.in_channels + c.condition_channels, c.input_height, c.input_width});
}

void PatchEmbed::want_input_gradient(autograd::Tape& tape) {
  const Shape& s = given_ != nullptr ? given_->shape : image->shape;
  dimage = tape.temporary("dimage", s);
  dpatches_ = tape.temporary("dpatches", {s[0], s[2] / patch_ * (s[3] / patch_), s[1] * patch_ * patch_});
}

const Tensor& PatchEmbed::input(ops::Context& ctx) {
  if (given_ == nullptr) return image->tensor;
  const int64_t own = num_elements(image->shape) / image->shape[0], all = num_elements(given_->shape) / image->shape[0];
  const Pin<float> from(image->tensor, Access::kRead), to(given_->tensor);
  ctx.for_range(image->shape[0], 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t b = begin; b < end; ++b) {
      const std::vector<float>& condition = stream_.inputs->conditions[size_t(b)].image;
      DITRAIN_CHECK(int64_t(condition.size()) == all - own, "a condition with the image that the model takes");
      std::copy_n(from + b * own, own, to + b * all);
      std::copy_n(condition.data(), all - own, to + b * all + own);
    }
  });
  return given_->tensor;
}

void PatchEmbed::forward(ops::Context& ctx) {
  weights_.proj.forward(ctx, ops::LinearInput::patches(input(ctx), patch_), x_BTC_->tensor);
  if (weights_.pos_embed != nullptr) ops::add_position(ctx, weights_.pos_embed->value, x_BTC_->tensor);
}

void PatchEmbed::backward(ops::Context& ctx, Gradients gradients) {
  const Tensor& read = given_ != nullptr ? given_->tensor : image->tensor;
  weights_.proj.backward_weight(ctx, ops::LinearInput::patches(read, patch_), stream_.dx_BTC->tensor, gradients);
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
