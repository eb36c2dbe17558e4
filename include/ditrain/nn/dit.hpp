// The Diffusion Transformer (the reference's class DiT): parameters under their public names, and passes over them.
//
//   Dit model(config);
//   model.parameters().allocate(ParameterStore::For::kTraining);
//   initialise(model, seed);
//   DitPass pass(model, batch, Mode::kTraining);  pass.allocate();
//   fill pass.image(), pass.t(), pass.y();  pass.forward(ctx);  fill pass.dout() from pass.out();  pass.backward(ctx);
#pragma once
#include <memory>

#include "ditrain/nn/block.hpp"
#include "ditrain/nn/conditioning.hpp"
#include "ditrain/nn/final_layer.hpp"
#include "ditrain/nn/patch_embed.hpp"

namespace ditrain::nn {

class Dit {
 public:
  /// Lays out the parameters, or those of one of the ranks that share them; allocates nothing.
  /// Errors: InputError if the sizes do not fit together; LogicFault if heads or MLP width do not divide over the ranks
  explicit Dit(const DitConfig& config, const TensorParallel& tensor = {});

  const DitConfig& config() const { return config_; }
  const TensorParallel& tensor_parallel() const { return tensor_; }
  autograd::ParameterStore& parameters() { return parameters_; }

 private:
  friend class DitPass;
  /// How ranks share a layer: each has all of it, or some of its outputs (of every third for qkv) or of its inputs.
  enum class Cut { kNone, kOutputs, kThirds, kInputs };
  Parameter& add(const std::string& name, const Shape& full_shape, int64_t order, Cut cut);
  LinearWeights add_linear(const std::string& name, const Shape& weight_shape, int64_t order, Cut cut = Cut::kNone);

  DitConfig config_;
  TensorParallel tensor_;
  autograd::ParameterStore parameters_;
  PatchEmbedWeights patch_embed_;
  ConditioningWeights conditioning_;
  std::vector<BlockWeights> blocks_;
  FinalLayerWeights final_layer_;
};

/// The reference's initialize_weights. Linear weights xavier-uniform (qkv and adaLN as one matrix, the patch projection
/// as [C, in P P]), biases 0, label table and timestep MLP N(0, 0.02), adaLN and the final linear layer 0; pos_embed is
/// the fixed table. Each parameter has a random stream of its own: (seed, number in the state dict). Ranks that share
/// the model get their parts of the same numbers.
void initialise(Dit& model, uint64_t seed);

/// How a pass runs.
struct PassOptions {
  bool want_input_gradient = false;
  Recompute recompute = Recompute::kSelective;
  /// kBF16: products in bf16 with f32 sums, activations between them kept as bf16; needs ParameterStore::values_bf16.
  /// The residual stream, statistics, conditioning, embedders and all gradients of parameters stay f32.
  DType precision = DType::kF32;
  /// What becomes of adaLN's weight gradients; must outlive the pass, which reads it in each backward. Null: gradients.
  const FactorRows* adaLN_factors = nullptr;
};

/// A tape of the model for one batch size: what a training step or a sampler replays.
class DitPass {
 public:
  /// Declares all activations; allocates nothing, so that the memory plan can be read first. Of a model that ranks
  /// share, all of them run the pass, each with one cluster of workers.
  DitPass(Dit& model, int64_t batch, autograd::Mode mode, const PassOptions& options = {});
  void allocate() { tape_.allocate(); }

  int64_t batch() const { return stream_.batch; }
  Tensor image() const { return patch_embed_->image->tensor; }    ///< [B, in, H, W], input
  std::vector<double>& t() const { return conditioning_->t; }     ///< [B], input
  std::vector<int64_t>& y() const { return conditioning_->y; }    ///< [B], input; null class where dropped
  Tensor out() const { return final_layer_->out->tensor; }        ///< [B, O, H, W]
  Tensor dout() const { return final_layer_->dout->tensor; }      ///< [B, O, H, W], input of backward
  Tensor dimage() const { return patch_embed_->dimage->tensor; }  ///< only if options.want_input_gradient

  void forward(ops::Context& ctx);
  void backward(ops::Context& ctx, autograd::Gradients gradients = autograd::Gradients::kAdd) {
    tape_.backward(ctx, gradients);
  }
  autograd::Tape& tape() { return tape_; }

 private:
  autograd::Tape tape_;
  TokenStream stream_;
  PatchEmbed* patch_embed_;
  Conditioning* conditioning_;
  FinalLayer* final_layer_;
};

}  // namespace ditrain::nn
