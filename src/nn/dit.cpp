// The Diffusion Transformer (the reference's class DiT): parameters under their public names, and passes over them.
// Each layer declares its own (declarations.hpp); the constructor of Dit is the reference's __init__.
#include "ditrain/base/error.hpp"
#include "ditrain/nn/block.hpp"
#include "ditrain/nn/conditioning.hpp"
#include "ditrain/nn/final_layer.hpp"
#include "ditrain/nn/patch_embed.hpp"
#include "layer_sync_node.hpp"
#include "models.hpp"
#include "route_recorder.hpp"

namespace ditrain::nn {
namespace {

class Dit final : public Network {
 public:
  // The reference's DiT.__init__, module by module: the order of the state dict.
  Dit(const Declarations& model, const ModelConfig& config) : config_(config) {
    patch_embed_ = declare_patch_embed(model, config_);
    conditioning_ = declare_conditioning(model, config_);
    for (int64_t i = 0; i < config_.depth; ++i) {
      const std::string number = std::to_string(i);
      blocks_.push_back(declare_block(model.in("blocks." + number, "transformer_blocks." + number), config_));
    }
    final_layer_ = declare_final_layer(model, config_);
  }

  std::vector<Parameter*> in_arena() const override;
  void record(PassRecord& pass) const override;
  double forward_macs(const Routes& routes) const override;
  ProductReads block_reads() const override;

  // Shifts, scales and gates of the blocks, then of the final layer.
  bool has_modulations() const override { return true; }
  std::vector<ActivationRef> record_modulations(autograd::Tape& tape, TokenStream& stream) const override;

 private:
  std::vector<ActivationRef> given_modulations(autograd::Tape& tape, int64_t batch) const;

  ModelConfig config_;
  PatchEmbedWeights patch_embed_;
  ConditioningWeights conditioning_;
  std::vector<BlockWeights> blocks_;
  FinalLayerWeights final_layer_;
};

std::vector<Parameter*> Dit::in_arena() const {
  std::vector<Parameter*> all;
  const auto append = [&](const std::vector<Parameter*>& of_node) {
    all.insert(all.end(), of_node.begin(), of_node.end());
  };
  append(patch_embed_.in_arena());
  append(conditioning_.in_arena());
  for (const BlockWeights& block : blocks_) append(block.in_arena());
  append(final_layer_.in_arena());
  return all;
}

double Dit::forward_macs(const Routes& routes) const {
  double macs = 0;
  const auto add = [&](const std::vector<Parameter*>& of_node, int64_t tokens) {
    for (const Parameter* p : of_node)
      if (p->product != ProductRows::kNone)
        macs += double(p->product == ProductRows::kTokens ? tokens : 1) * double(num_elements(p->full_shape));
  };
  add(patch_embed_.in_arena(), config_.tokens());
  add(conditioning_.in_arena(), config_.tokens());
  for (int64_t i = 0; i < config_.depth; ++i) {
    const int64_t tokens = tokens_of_block(routes, config_, i);
    add(blocks_[size_t(i)].in_arena(), tokens);
    macs += attention_macs(config_, tokens);
  }
  add(final_layer_.in_arena(), config_.tokens());
  return macs;
}

ProductReads Dit::block_reads() const {
  ProductReads reads;
  for (const Parameter* p : blocks_.front().in_arena()) {
    if (p->product != ProductRows::kTokens) continue;  // adaLN is computed for all blocks at once
    const int64_t values = num_elements(p->full_shape);
    reads.weights += double(values);
    reads.inputs += double(config_.tokens() * (values / p->full_shape[0]));
  }
  return reads;
}

std::vector<ActivationRef> Dit::record_modulations(autograd::Tape& tape, TokenStream& stream) const {
  stream.cond_BC = tape.temporary("cond", {stream.batch, config_.hidden_size});
  tape.record<Conditioning>(config_, conditioning_, stream);
  std::vector<ActivationRef> all;
  const auto record = [&](const std::string& module, const LinearWeights& weights) {
    all.push_back(tape.record<AdalnModulation>(module, weights, stream).out());
  };
  for (size_t i = 0; i < blocks_.size(); ++i) record("blocks." + std::to_string(i), blocks_[i].adaLN);
  record("final_layer", final_layer_.adaLN);
  return all;
}

std::vector<ActivationRef> Dit::given_modulations(autograd::Tape& tape, int64_t batch) const {
  std::vector<ActivationRef> all;
  const auto declare = [&](const std::string& module, const LinearWeights& weights) {
    all.push_back(tape.temporary(module + ".adaLN_modulation", {batch, weights.b->size()}));
  };
  for (size_t i = 0; i < blocks_.size(); ++i) declare("blocks." + std::to_string(i), blocks_[i].adaLN);
  declare("final_layer", final_layer_.adaLN);
  return all;
}

namespace {

// The output of a node for somebody else, too.
Connect and_for(ActivationRef& other, Connect connect) {
  return [&other, connect = std::move(connect)](const ActivationRef& x) { connect(x), other = x; };
}

}  // namespace

void Dit::record(PassRecord& pass) const {
  autograd::Tape& tape = pass.tape;
  TokenStream& stream = pass.stream;
  const ModelConfig& c = config_;
  const Shape BC{stream.batch, c.hidden_size}, BTC{stream.batch, c.tokens(), c.hidden_size};
  pass.keep_of_block(0);
  if (tape.mode() == autograd::Mode::kTraining) {
    stream.dcond_BC = tape.temporary("dcond", BC);
    stream.dx_BTC = tape.temporary("dx", BTC);
  }
  if (!stream.tensor.alone() && stream.activations == DType::kBF16) stream.partial_BTC = tape.temporary("partial", BTC);
  Connect connect;
  auto& patch_embed = tape.record<PatchEmbed>(c, patch_embed_, stream);
  if (pass.options.want_input_gradient) patch_embed.want_input_gradient(tape);
  pass.image = patch_embed.image(), pass.dimage = patch_embed.dimage;
  connect = [&patch_embed](ActivationRef x) { patch_embed.set_output(std::move(x)); };
  pass.modulations =
      pass.options.given_modulations ? given_modulations(tape, stream.batch) : record_modulations(tape, stream);
  RouteRecorder routes(pass, c.hidden_size);
  const std::optional<LayerSync>& sync = pass.options.layer_sync;
  LayerSyncNode* sync_node = nullptr;
  for (int64_t i = 0; i < c.depth; ++i) {
    const BlockWeights& weights = blocks_[size_t(i)];
    routes.before(i, connect);
    pass.keep_of_block(i);
    auto& attention = tape.record<AttentionHalf>(c, i, weights, stream, pass.modulations[size_t(i)]);
    auto& mlp = tape.record<MlpHalf>(c, i, weights.mlp, stream, attention);
    connect(attention.x_BTC);
    connect = [&mlp](ActivationRef x) { mlp.set_output(std::move(x)); };
    routes.behind(i, connect);
    if (sync && i == sync->from) {
      sync_node = &tape.record<LayerSyncNode>(*sync, stream, pass.cosines);
      connect = and_for(sync_node->from_BTC, std::move(connect));
    }
    if (sync && i == sync->to) connect = and_for(sync_node->to_BTC, std::move(connect));
  }
  auto& final_layer = tape.record<FinalLayer>(c, final_layer_, stream, pass.modulations.back());
  connect(final_layer.x_BTC);
  pass.out = final_layer.out, pass.dout = final_layer.dout;
}

}  // namespace

void check_dit(const ModelConfig& c) {
  require_model(c.position != Position::kRope || c.head_dim() % 4 == 0, "model.hidden_size / model.num_heads",
                std::to_string(c.head_dim()),
                "a multiple of 4 for model.position: rope (pairs for rows and columns), or sincos");
  require_model(c.hidden_size % 4 == 0, "model.hidden_size", std::to_string(c.hidden_size),
                "a multiple of 4 (sines and cosines of rows and columns)");
}

std::unique_ptr<Network> make_dit(const Declarations& model, const ModelConfig& config) {
  return std::make_unique<Dit>(model, config);
}

}  // namespace ditrain::nn
