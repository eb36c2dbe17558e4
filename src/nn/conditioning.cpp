#include "ditrain/nn/conditioning.hpp"

#include "ditrain/ops/elementwise.hpp"
#include "ditrain/ops/embedding.hpp"

namespace ditrain::nn {

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
  if (label_table != nullptr) all.push_back(label_table);
  return all;
}

Conditioning::Conditioning(autograd::Tape& tape, const ModelConfig& c, const ConditioningWeights& weights,
                           const TokenStream& stream)
    : Node("conditioning", weights.in_arena()), weights_(weights), stream_(stream) {
  const Shape BC{stream.batch, c.hidden_size};
  waves_ = tape.keep(*this, "waves", {stream.batch, kTimestepFrequencies});
  hidden_ = tape.keep(*this, "hidden", BC);
  hidden_silu_ = tape.keep(*this, "hidden_silu", BC);
  c_BC_ = tape.keep(*this, "c", BC);
  label_BC_ = tape.temporary("label", BC);
  dc_BC_ = tape.temporary("dc", BC);
  dhidden_ = tape.temporary("dhidden", BC);
}

std::vector<int64_t> Conditioning::labels() const {
  std::vector<int64_t> all;
  for (const Condition& condition : stream_.inputs->conditions) all.push_back(condition.label);
  return all;
}

void Conditioning::forward(ops::Context& ctx) {
  ops::timestep_embedding(ctx, stream_.inputs->t, waves_->tensor);
  weights_.mlp0.forward(ctx, waves_->tensor, hidden_->tensor);
  ops::silu_forward(ctx, hidden_->tensor, hidden_silu_->tensor);
  weights_.mlp2.forward(ctx, hidden_silu_->tensor, c_BC_->tensor);
  if (weights_.label_table != nullptr) {
    ops::embedding_forward(ctx, weights_.label_table->value, labels(), label_BC_->tensor);
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
  weights_.mlp2.backward_weight(ctx, hidden_silu_->tensor, dc_BC_->tensor, gradients);
  weights_.mlp2.backward_data(ctx, dc_BC_->tensor, dhidden_->tensor);
  ops::silu_backward(ctx, hidden_->tensor, dhidden_->tensor, dhidden_->tensor);
  weights_.mlp0.backward_weight(ctx, waves_->tensor, dhidden_->tensor, gradients);
}

}  // namespace ditrain::nn
