// The Diffusion Transformer (the reference's class DiT): parameters under their public names, and passes over them.
// Each layer declares its own (declarations.hpp); Dit::declare in dit.cpp is the reference's __init__.
//
//   Dit model(config);
//   model.parameters().allocate(ParameterStore::For::kTraining);
//   initialise(model, seed);
//   DitPass pass(model, batch, Mode::kTraining);  pass.allocate();
//   fill pass.image(), pass.t(), pass.conditions();  pass.forward(ctx);
//   fill pass.dout() from pass.out();  pass.backward(ctx);
#pragma once
#include <memory>

#include "ditrain/nn/block.hpp"
#include "ditrain/nn/conditioning.hpp"
#include "ditrain/nn/final_layer.hpp"
#include "ditrain/nn/patch_embed.hpp"

namespace ditrain::nn {

/// Multiply-adds of one forward pass of one image: all linear layers and attention, as in the DiT paper's "Gflops".
/// Training work is 6 x this in FLOP (backward is twice the forward; a multiply-add is 2 FLOP).
double forward_macs(const DitConfig& config);

/// Values that the GEMMs of one block read in a forward pass: weights, and inputs per image. adaLN does not count,
/// because it is computed for all blocks at once.
struct ProductReads {
  double weights = 0, inputs = 0;
};
ProductReads block_reads(const DitConfig& config);

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
  friend class ModulationTable;
  friend ProductReads block_reads(const DitConfig& config);
  void declare();
  std::vector<Parameter*> in_arena() const;
  // Of blocks, then of the final layer: with the nodes of all that depends on times, labels and numbers alone, or as
  // tensors that the caller fills.
  using Modulations = std::vector<ActivationRef>;
  Modulations record_modulations(autograd::Tape& tape, TokenStream& stream) const;
  Modulations given_modulations(autograd::Tape& tape, int64_t batch) const;

  DitConfig config_;
  TensorParallel tensor_;
  autograd::ParameterStore parameters_;
  PatchEmbedWeights patch_embed_;
  ConditioningWeights conditioning_;
  std::vector<BlockWeights> blocks_;
  FinalLayerWeights final_layer_;
};

/// Initialises every parameter as it declares, which together is the reference's initialize_weights. Each has a random
/// stream of its own: (seed, number in the state dict). Ranks that share the model get their parts of the same numbers.
void initialise(Dit& model, uint64_t seed);

/// How a pass runs.
struct PassOptions {
  bool want_input_gradient = false;
  Recompute recompute = Recompute::kSelective;
  /// kBF16: GEMMs in bf16 with f32 sums, and stored activations in bf16; needs ParameterStore::values_bf16. The
  /// residual stream, statistics, conditioning, embedders and all gradients of parameters stay f32.
  DType precision = DType::kF32;
  /// Is offered the gradients of layers with one row per sample (adaLN); must outlive the pass.
  const WeightGradientSink* sink = nullptr;
  std::vector<Recompute> recompute_of_blocks = {};  ///< instead of `recompute`; empty: the same for all
  /// Inference only: the pass embeds no times, labels and numbers; DitPass::modulate gives it the modulations of a
  /// table.
  bool given_modulations = false;
};

/// Shifts, scales and gates of all blocks and of the final layer for pairs of a time and a condition, in rows: computed
/// for many steps of a sampler at once, as they depend on nothing else, and read the weights of a third of the model.
/// Numerics: a row is bit-identical to what a pass with this time, label and numbers computes
class ModulationTable {
 public:
  /// Allocates nothing. The model has to outlive the table.
  ModulationTable(Dit& model, int64_t rows);
  size_t bytes() const { return tape_.temporary_bytes(); }
  void allocate() { tape_.allocate(); }

  std::vector<double>& t() const { return stream_.inputs->t; }                       ///< [rows], input
  std::vector<Condition>& conditions() const { return stream_.inputs->conditions; }  ///< [rows], input
  void compute(ops::Context& ctx) { tape_.forward(ctx); }

 private:
  friend class DitPass;
  autograd::Tape tape_{autograd::Mode::kInference};
  TokenStream stream_;
  Dit::Modulations modulations_;
};

/// A tape of the model for one batch size, which a training step or a sampler replays.
class DitPass {
 public:
  /// Declares all activations; allocates nothing, so that the memory plan can be read first. Ranks that share a model
  /// all run the pass, each with one cluster of workers.
  DitPass(Dit& model, int64_t batch, autograd::Mode mode, const PassOptions& options = {});
  void allocate(StorageSource* kept = nullptr) { tape_.allocate(memory::system_memory(), kept); }

  int64_t batch() const { return stream_.batch; }
  Tensor image() const { return patch_embed_->image->tensor; }                       ///< [B, in, H, W], input
  std::vector<double>& t() const { return stream_.inputs->t; }                       ///< [B], input
  std::vector<Condition>& conditions() const { return stream_.inputs->conditions; }  ///< [B], input: see PassInputs
  Tensor out() const { return final_layer_->out->tensor; }                           ///< [B, O, H, W]
  Tensor dout() const { return final_layer_->dout->tensor; }      ///< [B, O, H, W], input of backward
  Tensor dimage() const { return patch_embed_->dimage->tensor; }  ///< only if options.want_input_gradient

  /// Takes the modulations of each sample from a row of the table [B]; only if options.given_modulations. Forward reads
  /// them then instead of t(), labels and numbers.
  void modulate(ops::Context& ctx, const ModulationTable& table, const std::vector<int64_t>& row_of_sample);
  void forward(ops::Context& ctx);
  void backward(ops::Context& ctx, autograd::Gradients gradients = autograd::Gradients::kAdd) {
    tape_.backward(ctx, gradients);
  }
  autograd::Tape& tape() { return tape_; }

 private:
  autograd::Tape tape_;
  TokenStream stream_;
  PatchEmbed* patch_embed_;
  bool given_modulations_;
  Dit::Modulations modulations_;
  FinalLayer* final_layer_;
};

}  // namespace ditrain::nn
