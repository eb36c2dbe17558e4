#include "ditrain/nn/dit.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"

namespace ditrain::nn {

Dit::Dit(const DitConfig& config, const TensorParallel& tensor) : config_(config), tensor_(tensor) {
  validate(config);
  DITRAIN_CHECK(config.num_heads % tensor.size == 0 && config.mlp_size() % tensor.size == 0,
                config.name + " over " + std::to_string(tensor.size) + " ranks");
  declare();
  parameters_.lay_out(in_arena());
}

// The reference's DiT.__init__, module by module: the order of the state dict.
void Dit::declare() {
  const Declarations model(parameters_, tensor_);
  patch_embed_ = declare_patch_embed(model, config_);
  conditioning_ = declare_conditioning(model, config_);
  for (int64_t i = 0; i < config_.depth; ++i) {
    const std::string number = std::to_string(i);
    blocks_.push_back(declare_block(model.in("blocks." + number, "transformer_blocks." + number), config_));
  }
  final_layer_ = declare_final_layer(model, config_);
}

// Node after node of the pass: backward goes from the end to the start, so gradients become final in the reverse order.
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

double forward_macs(const DitConfig& config) {
  Dit model(config);
  double macs = double(config.depth) * attention_macs(config);
  for (const Parameter* p : model.parameters().state_dict())
    if (p->product != ProductRows::kNone)
      macs += double(p->product == ProductRows::kTokens ? config.tokens() : 1) * double(num_elements(p->full_shape));
  return macs;
}

ProductReads block_reads(const DitConfig& config) {
  const Dit model(config);
  ProductReads reads;
  for (const Parameter* p : model.blocks_.front().in_arena()) {
    if (p->product != ProductRows::kTokens) continue;
    const int64_t values = num_elements(p->full_shape);
    reads.weights += double(values);
    reads.inputs += double(config.tokens() * (values / p->full_shape[0]));
  }
  return reads;
}

void initialise(Dit& model, uint64_t seed) {
  uint64_t number = 0;
  std::vector<float> full;
  for (Parameter* p : model.parameters().state_dict()) {
    const RandomKey key(seed, Stream::kInit, number++);
    const Pin<float> value(p->value);
    if (p->part.whole()) {
      p->initial.fill(p->full_shape, key, value);
      continue;
    }
    full.resize(size_t(num_elements(p->full_shape)));
    p->initial.fill(p->full_shape, key, full.data());
    p->part.take(full.data(), value);
  }
}

Dit::Modulations Dit::record_modulations(autograd::Tape& tape, TokenStream& stream) const {
  stream.cond_BC = tape.temporary("cond", {stream.batch, config_.hidden_size});
  tape.record<Conditioning>(config_, conditioning_, stream);
  Modulations all;
  const auto record = [&](const std::string& module, const LinearWeights& weights) {
    all.push_back(tape.record<AdalnModulation>(module, weights, stream).out());
  };
  for (size_t i = 0; i < blocks_.size(); ++i) record("blocks." + std::to_string(i), blocks_[i].adaLN);
  record("final_layer", final_layer_.adaLN);
  return all;
}

Dit::Modulations Dit::given_modulations(autograd::Tape& tape, int64_t batch) const {
  DITRAIN_CHECK(tape.mode() == autograd::Mode::kInference, "modulations that backward does not reach");
  Modulations all;
  const auto declare = [&](const std::string& module, const LinearWeights& weights) {
    all.push_back(tape.temporary(module + ".adaLN_modulation", {batch, weights.b->size()}));
  };
  for (size_t i = 0; i < blocks_.size(); ++i) declare("blocks." + std::to_string(i), blocks_[i].adaLN);
  declare("final_layer", final_layer_.adaLN);
  return all;
}

ModulationTable::ModulationTable(Dit& model, int64_t rows) {
  stream_.batch = rows;
  stream_.inputs = std::make_shared<PassInputs>(rows);
  modulations_ = model.record_modulations(tape_, stream_);
}

DitPass::DitPass(Dit& model, int64_t batch, autograd::Mode mode, const PassOptions& options)
    : tape_(mode), given_modulations_(options.given_modulations) {
  const DitConfig& c = model.config();
  const Shape BC{batch, c.hidden_size}, BTC{batch, c.tokens(), c.hidden_size};
  stream_.batch = batch;
  stream_.inputs = std::make_shared<PassInputs>(batch);
  stream_.activations = options.precision;
  DITRAIN_CHECK(options.recompute_of_blocks.empty() || int64_t(options.recompute_of_blocks.size()) == c.depth,
                "recomputation of another number of blocks");
  const auto set_recompute = [&](Recompute recompute) {
    stream_.keep_cheap = recompute == Recompute::kNone ? KeepPolicy::kKeep : KeepPolicy::kRecompute;
    stream_.keep_costly = recompute == Recompute::kBlock ? KeepPolicy::kRecompute : KeepPolicy::kKeep;
  };
  set_recompute(options.recompute);
  if (mode == autograd::Mode::kTraining) {
    stream_.dcond_BC = tape_.temporary("dcond", BC);
    stream_.dx_BTC = tape_.temporary("dx", BTC);
  }
  stream_.sink = options.sink;
  stream_.tensor = model.tensor_parallel();
  if (!stream_.tensor.alone() && options.precision == DType::kBF16)
    stream_.partial_BTC = tape_.temporary("partial", BTC);
  // A node's output is the input that the next node keeps.
  std::function<void(ActivationRef)> connect;
  patch_embed_ = &tape_.record<PatchEmbed>(c, model.patch_embed_, stream_);
  if (options.want_input_gradient) patch_embed_->want_input_gradient(tape_);
  connect = [this](ActivationRef x) { patch_embed_->set_output(std::move(x)); };
  modulations_ =
      options.given_modulations ? model.given_modulations(tape_, batch) : model.record_modulations(tape_, stream_);
  for (int64_t i = 0; i < c.depth; ++i) {
    const BlockWeights& weights = model.blocks_[size_t(i)];
    if (!options.recompute_of_blocks.empty()) set_recompute(options.recompute_of_blocks[size_t(i)]);
    auto& attention = tape_.record<AttentionHalf>(c, i, weights, stream_, modulations_[size_t(i)]);
    auto& mlp = tape_.record<MlpHalf>(c, i, weights.mlp, stream_, attention);
    connect(attention.x_BTC);
    connect = [&mlp](ActivationRef x) { mlp.set_output(std::move(x)); };
  }
  final_layer_ = &tape_.record<FinalLayer>(c, model.final_layer_, stream_, modulations_.back());
  connect(final_layer_->x_BTC);
}

void DitPass::modulate(ops::Context& ctx, const ModulationTable& table, const std::vector<int64_t>& row_of_sample) {
  DITRAIN_CHECK(given_modulations_, "a pass that computes its modulations");
  DITRAIN_CHECK(int64_t(row_of_sample.size()) == batch(), "a row of the table for every sample");
  const auto modules = int64_t(modulations_.size());
  ctx.for_range(modules, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t m = begin; m < end; ++m) {
      const Tensor &all = table.modulations_[size_t(m)]->tensor, &mine = modulations_[size_t(m)]->tensor;
      const Pin<float> from(all), to(mine);
      const int64_t width = all.dim(1);
      for (int64_t b = 0; b < batch(); ++b) std::copy_n(from + row_of_sample[size_t(b)] * width, width, to + b * width);
    }
  });
}

void DitPass::forward(ops::Context& ctx) {
  DITRAIN_CHECK(stream_.tensor.alone() || ctx.team().num_clusters() == 1, "clusters of a rank that shares a replica");
  tape_.forward(ctx);
}

}  // namespace ditrain::nn
