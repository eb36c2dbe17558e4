// The denoising network behind one interface. Programs, plans, training and sampling use Model and ModelPass, and do
// not depend on the architecture (model.kind). An architecture is a Network: one file, with a row in src/nn/models.cpp.
// It declares its parameters (declarations.hpp), records its nodes on a tape and counts its work; memory plans, tiers,
// gradients, checkpoints and exports follow from that.
//
//   Model model(config);
//   model.parameters().allocate(ParameterStore::For::kTraining);
//   initialise(model, seed);
//   ModelPass pass(model, batch, Mode::kTraining);  pass.allocate();
//   fill pass.image(), pass.t(), pass.conditions();
//   pass.forward(ctx);  fill pass.dout() from pass.out();  pass.backward(ctx);
#pragma once
#include <memory>
#include <optional>

#include "ditrain/nn/declarations.hpp"
#include "ditrain/nn/layer_sync.hpp"

namespace ditrain::nn {

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
  /// Inference only, for a model that has_modulations(): the pass embeds no times, labels and numbers;
  /// ModelPass::modulate gives it the modulations of a table instead.
  bool given_modulations = false;
  Routes routes = {};  ///< routes of tokens around blocks; ModelPass::remaining_tokens says which tokens stay
  /// Training only: backward adds the gradient of this loss, and sets ModelPass::cosines.
  std::optional<LayerSync> layer_sync = {};
};

/// Numbers of values that the GEMMs of one block read in a forward pass: weights, and inputs per image. GEMMs that are
/// computed for all blocks at once do not count.
struct ProductReads {
  double weights = 0, inputs = 0;
};

/// A pass while a network records it.
struct PassRecord {
  autograd::Tape& tape;
  const PassOptions& options;
  TokenStream stream;  ///< batch, inputs, types, ranks and sink are set; keep_of_block sets the keep policies
  // What the network fills in.
  ActivationRef image = {};                     ///< [B, in, H, W], input
  ActivationRef dimage = {};                    ///< its gradient, if options.want_input_gradient
  ActivationRef out = {}, dout = {};            ///< [B, O, H, W]; dout: in training, written by the caller
  std::vector<ActivationRef> modulations = {};  ///< as those of Network::record_modulations
  std::shared_ptr<std::vector<double>> cosines = std::make_shared<std::vector<double>>();  ///< see ModelPass

  /// Sets in the stream what a block stores and what it recomputes. Call it before its nodes are recorded.
  void keep_of_block(int64_t block);
};

/// An architecture. Its constructor declares its parameters.
class Network {
 public:
  virtual ~Network() = default;
  Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// All trainable parameters, node after node of a pass: backward goes from the end to the start, so that gradients
  /// become final in the reverse order.
  virtual std::vector<Parameter*> in_arena() const = 0;
  virtual void record(PassRecord& pass) const = 0;
  /// Multiply-adds of one forward pass of one image: all linear layers and attention.
  virtual double forward_macs(const Routes& routes) const = 0;
  virtual ProductReads block_reads() const = 0;

  /// Modulations are tensors [B, ...] that depend on times and conditions alone; a ModulationTable computes them for
  /// many steps of a sampler at once. A network may have none.
  virtual bool has_modulations() const { return false; }
  virtual std::vector<ActivationRef> record_modulations(autograd::Tape&, TokenStream&) const { return {}; }
};

class Model {
 public:
  /// Lays out the parameters, or one rank's part of them if ranks share the model; allocates nothing.
  /// Errors: InputError if the sizes do not fit together; LogicFault if heads or MLP width do not divide over the ranks
  explicit Model(const ModelConfig& config, const TensorParallel& tensor = {});

  const ModelConfig& config() const { return config_; }
  const TensorParallel& tensor_parallel() const { return tensor_; }
  autograd::ParameterStore& parameters() { return parameters_; }
  const Network& network() const { return *network_; }
  bool has_modulations() const { return network_->has_modulations(); }

 private:
  ModelConfig config_;
  TensorParallel tensor_;
  autograd::ParameterStore parameters_;
  std::unique_ptr<Network> network_;
};

/// Initialises every parameter as it declares, which together is what the reference's initialisation does. Each has a
/// random stream of its own: (seed, number in the state dict). Ranks that share the model get their parts of the same
/// numbers.
void initialise(Model& model, uint64_t seed);

/// Network::forward_macs of a model: as in the DiT paper's "Gflops". Training work is 6 x this in FLOP (backward is
/// twice the forward; a multiply-add is 2 FLOP).
double forward_macs(const ModelConfig& config, const Routes& routes = {});
ProductReads block_reads(const ModelConfig& config);

/// The modulations of a model for pairs of a time and a condition, one pair per row, computed for many steps of a
/// sampler at once, because they depend on nothing else. For DiT they are shifts, scales and gates, whose weights are a
/// third of the model.
/// Numerics: a row is bit-identical to what a pass with this time, label and numbers computes
class ModulationTable {
 public:
  /// Allocates nothing. The model must outlive the table. Errors: LogicFault unless the model has_modulations()
  ModulationTable(Model& model, int64_t rows);
  size_t bytes() const { return tape_.temporary_bytes(); }
  void allocate() { tape_.allocate(); }

  std::vector<double>& t() const { return stream_.inputs->t; }                       ///< [rows], input
  std::vector<Condition>& conditions() const { return stream_.inputs->conditions; }  ///< [rows], input
  void compute(ops::Context& ctx) { tape_.forward(ctx); }

 private:
  friend class ModelPass;
  autograd::Tape tape_{autograd::Mode::kInference};
  TokenStream stream_;
  std::vector<ActivationRef> modulations_;
};

/// A tape of the model for one batch size, which a training step or a sampler replays.
class ModelPass {
 public:
  /// Declares all activations; allocates nothing, so that the memory plan can be read first. If ranks share a model,
  /// all of them run the pass, each with one cluster of workers.
  ModelPass(Model& model, int64_t batch, autograd::Mode mode, const PassOptions& options = {});
  void allocate(StorageSource* kept = nullptr) { tape_.allocate(memory::system_memory(), kept); }

  int64_t batch() const { return batch_; }
  Tensor image() const { return image_->tensor; }                             ///< [B, in, H, W], input
  std::vector<double>& t() const { return inputs_->t; }                       ///< [B], input
  std::vector<Condition>& conditions() const { return inputs_->conditions; }  ///< [B], input: see PassInputs
  /// [B, K], input: see PassInputs.
  std::vector<int64_t>& remaining_tokens(size_t route) const { return inputs_->remaining_tokens[route]; }
  /// Draws, for one sample and all routes, the tokens that stay.
  void draw_remaining_tokens(int64_t sample, const RandomKey& key);
  Tensor out() const { return out_->tensor; }                       ///< [B, O, H, W]
  Tensor dout() const { return dout_->tensor; }                     ///< [B, O, H, W], input of backward
  Tensor dimage() const { return dimage_->tensor; }                 ///< only if options.want_input_gradient
  const std::vector<double>& cosines() const { return *cosines_; }  ///< [B, T], for options.layer_sync

  /// Copies the modulations of each sample from its row of the table; row_of_sample [B]. Only with
  /// options.given_modulations. Forward then reads them instead of t(), labels and numbers.
  void modulate(ops::Context& ctx, const ModulationTable& table, const std::vector<int64_t>& row_of_sample);
  void forward(ops::Context& ctx);
  void backward(ops::Context& ctx, autograd::Gradients gradients = autograd::Gradients::kAdd) {
    tape_.backward(ctx, gradients);
  }
  autograd::Tape& tape() { return tape_; }

 private:
  autograd::Tape tape_;
  int64_t batch_;
  std::shared_ptr<PassInputs> inputs_;
  bool alone_, given_modulations_;
  Routes routes_;
  int64_t tokens_;
  ActivationRef image_, dimage_, out_, dout_;
  std::vector<ActivationRef> modulations_;
  std::shared_ptr<std::vector<double>> cosines_;
};

}  // namespace ditrain::nn
