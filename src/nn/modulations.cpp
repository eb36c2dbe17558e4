#include "ditrain/nn/modulations.hpp"

namespace ditrain::nn {

LinearWeights declare_modulation(const Declarations& module, const DitConfig& c, int64_t chunks,
                                 const std::string& diffusers) {
  return module.linear({.name = "adaLN_modulation.1",
                        .weight = {chunks * c.hidden_size, c.hidden_size},
                        .initial = Initial::constant(0),
                        .rows = ProductRows::kOne,
                        .offers_gradient = true,
                        .diffusers = {diffusers}});
}

Modulations::Modulations(autograd::Tape& tape, const DitConfig& c, std::vector<LinearWeights> blocks,
                         const LinearWeights* final_layer, const TokenStream& stream)
    : Node("modulations", {}), blocks_(std::move(blocks)), stream_(stream) {
  for (LinearWeights& layer : blocks_) layer.products = stream.activations;
  block_mods_ = tape.keep(*this, "blocks", {int64_t(blocks_.size()) * stream.batch, kNumModulations * c.hidden_size});
  if (final_layer == nullptr) return;
  final_layer_ = *final_layer;
  final_layer_->products = stream.activations;
  final_layer_mod_ = tape.keep(*this, "final_layer", {stream.batch, 2 * c.hidden_size});
}

Tensor Modulations::of_block(int64_t index) const {
  return block_mods_->tensor.rows(index * stream_.batch, (index + 1) * stream_.batch);
}

void Modulations::forward(ops::Context& ctx) {
  std::vector<ops::LinearLayer> layers;
  for (size_t i = 0; i < blocks_.size(); ++i)
    layers.push_back({blocks_[i].weight(), blocks_[i].b->value, of_block(int64_t(i))});
  if (final_layer_) layers.push_back({final_layer_->weight(), final_layer_->b->value, of_final_layer()});
  ops::linear_forward_all(ctx, stream_.cond_BC->tensor, layers);
}

}  // namespace ditrain::nn
