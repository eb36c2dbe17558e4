#include "ditrain/nn/conditioning.hpp"

#include <algorithm>
#include <cmath>

#include "ditrain/base/metadata.hpp"
#include "ditrain/ops/elementwise.hpp"
#include "ditrain/ops/embedding.hpp"

namespace ditrain::nn {
namespace {

// y = x, with 0 in the rows of samples whose number is not known; x may be y.
void copy_known(ops::Context& ctx, const std::vector<double>& values, const Tensor& x_BC, const Tensor& y_BC) {
  const Pin<float> x(x_BC, Access::kRead), y(y_BC);
  const int64_t C = x_BC.dim(1);
  ctx.for_range(int64_t(values.size()), 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t b = begin; b < end; ++b)
      for (int64_t i = b * C; i < (b + 1) * C; ++i) y.get()[i] = std::isnan(values[size_t(b)]) ? 0 : x.get()[i];
  });
}

}  // namespace

// The reference's t_embedder and y_embedder. diffusers has both in every block, where they get the same inputs.
ConditioningWeights declare_conditioning(const Declarations& model, const ModelConfig& c) {
  const std::string embedders = "transformer_blocks.*.norm1.emb.";
  const Initial normal = Initial::normal(0.02);
  const int64_t C = c.hidden_size;
  ConditioningWeights w;
  w.mlp0 = model.linear({.name = "t_embedder.mlp.0",
                         .weight = {C, kTimestepFrequencies},
                         .initial = normal,
                         .rows = ProductRows::kOne,
                         .group = ParameterGroup::kEmbedding,
                         .diffusers = {embedders + "timestep_embedder.linear_1"}});
  w.mlp2 = model.linear({.name = "t_embedder.mlp.2",
                         .weight = {C, C},
                         .initial = normal,
                         .rows = ProductRows::kOne,
                         .group = ParameterGroup::kEmbedding,
                         .diffusers = {embedders + "timestep_embedder.linear_2"}});
  for (const std::string& name : c.metadata) {
    ConditioningWeights::Number number;
    number.number = metadata_index(name, "model.metadata");
    const auto layer = [&](const char* part, int64_t inputs) {
      return model.linear({.name = "m_embedder." + name + part,
                           .weight = {C, inputs},
                           .initial = normal,
                           .rows = ProductRows::kOne,
                           .group = ParameterGroup::kEmbedding});
    };
    number.mlp0 = layer(".mlp.0", kTimestepFrequencies), number.mlp2 = layer(".mlp.2", C);
    w.numbers.push_back(number);
  }
  if (c.num_classes > 0)
    w.label_table = model.parameter({.name = "y_embedder.embedding_table.weight",
                                     .full_shape = {c.label_rows(), C},
                                     .initial = normal,
                                     .group = ParameterGroup::kEmbedding,
                                     .diffusers = {embedders + "class_embedder.embedding_table.weight"}});
  return w;
}

std::vector<Parameter*> ConditioningWeights::in_arena() const {
  std::vector<Parameter*> all{mlp0.w, mlp0.b, mlp2.w, mlp2.b};
  for (const Number& n : numbers) all.insert(all.end(), {n.mlp0.w, n.mlp0.b, n.mlp2.w, n.mlp2.b});
  if (label_table != nullptr) all.push_back(label_table);
  return all;
}

Conditioning::Conditioning(autograd::Tape& tape, const ModelConfig& c, const ConditioningWeights& weights,
                           const TokenStream& stream)
    : Node("conditioning", weights.in_arena()), weights_(weights), stream_(stream) {
  const Shape BC{stream.batch, c.hidden_size};
  embedders_.push_back(declare(tape, "", weights_.mlp0, weights_.mlp2));
  for (const ConditioningWeights::Number& n : weights_.numbers)
    embedders_.push_back(declare(tape, std::string(kMetadata[n.number].name) + ".", n.mlp0, n.mlp2));
  c_BC_ = tape.keep(*this, "c", BC);
  label_BC_ = tape.temporary("label", BC);
  dc_BC_ = tape.temporary("dc", BC);
  dhidden_ = tape.temporary("dhidden", BC);
}

Conditioning::Embedder Conditioning::declare(autograd::Tape& tape, const std::string& prefix, const LinearWeights& mlp0,
                                             const LinearWeights& mlp2) {
  const Shape BC{stream_.batch, mlp2.b->size()};
  Embedder e{.mlp0 = mlp0, .mlp2 = mlp2};
  e.waves = tape.keep(*this, prefix + "waves", {stream_.batch, kTimestepFrequencies});
  e.hidden = tape.keep(*this, prefix + "hidden", BC);
  e.hidden_silu = tape.keep(*this, prefix + "hidden_silu", BC);
  return e;
}

void Conditioning::embed(ops::Context& ctx, const Embedder& by, const std::vector<double>& values,
                         const Tensor& out) const {
  ops::timestep_embedding(ctx, values, by.waves->tensor);
  by.mlp0.forward(ctx, by.waves->tensor, by.hidden->tensor);
  ops::silu_forward(ctx, by.hidden->tensor, by.hidden_silu->tensor);
  by.mlp2.forward(ctx, by.hidden_silu->tensor, out);
}

void Conditioning::embed_backward(ops::Context& ctx, const Embedder& by, const Tensor& dout,
                                  Gradients gradients) const {
  by.mlp2.backward_weight(ctx, by.hidden_silu->tensor, dout, gradients);
  by.mlp2.backward_data(ctx, dout, dhidden_->tensor);
  ops::silu_backward(ctx, by.hidden->tensor, dhidden_->tensor, dhidden_->tensor);
  by.mlp0.backward_weight(ctx, by.waves->tensor, dhidden_->tensor, gradients);
}

std::vector<double> Conditioning::values_of(size_t number) const {
  std::vector<double> all;
  for (const Condition& condition : stream_.inputs->conditions)
    all.push_back(condition.numbers.empty() ? NAN : kMetadata[number].scaled(condition.numbers[number]) * kNumberScale);
  return all;
}

std::vector<int64_t> Conditioning::labels() const {
  std::vector<int64_t> all;
  for (const Condition& condition : stream_.inputs->conditions) all.push_back(condition.label);
  return all;
}

void Conditioning::forward(ops::Context& ctx) {
  embed(ctx, embedders_.front(), stream_.inputs->t, c_BC_->tensor);
  if (weights_.label_table != nullptr) {
    ops::embedding_forward(ctx, weights_.label_table->value, labels(), label_BC_->tensor);
    ops::add(ctx, label_BC_->tensor, c_BC_->tensor);
  }
  for (size_t j = 0; j < weights_.numbers.size(); ++j) {
    const std::vector<double> values = values_of(weights_.numbers[j].number);
    std::vector<double> known = values;
    for (double& x : known) x = std::isnan(x) ? 0 : x;
    embed(ctx, embedders_[j + 1], known, label_BC_->tensor);
    copy_known(ctx, values, label_BC_->tensor, label_BC_->tensor);
    ops::add(ctx, label_BC_->tensor, c_BC_->tensor);
  }
  ops::silu_forward(ctx, c_BC_->tensor, stream_.cond_BC->tensor);
}

void Conditioning::backward(ops::Context& ctx, Gradients gradients) {
  ops::silu_backward(ctx, c_BC_->tensor, stream_.dcond_BC->tensor, dc_BC_->tensor);
  if (weights_.label_table != nullptr) {
    const Tensor& dtable = weights_.label_table->grad;
    if (gradients == Gradients::kOverwrite) ops::zero(ctx, dtable);  // most rows get nothing
    ops::embedding_backward(ctx, labels(), dc_BC_->tensor, dtable);
  }
  for (size_t j = 0; j < weights_.numbers.size(); ++j) {
    copy_known(ctx, values_of(weights_.numbers[j].number), dc_BC_->tensor, label_BC_->tensor);
    embed_backward(ctx, embedders_[j + 1], label_BC_->tensor, gradients);
  }
  embed_backward(ctx, embedders_.front(), dc_BC_->tensor, gradients);
}

}  // namespace ditrain::nn
