#include "ditrain/nn/model.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "models.hpp"

namespace ditrain::nn {

Model::Model(const ModelConfig& config, const TensorParallel& tensor) : config_(config), tensor_(tensor) {
  validate(config);
  DITRAIN_CHECK(config.num_heads % tensor.size == 0 && config.mlp_size() % tensor.size == 0,
                config.name + " over " + std::to_string(tensor.size) + " ranks");
  network_ = model_row(config.kind).make(Declarations(parameters_, tensor_), config_);
  parameters_.lay_out(network_->in_arena());
}

double forward_macs(const ModelConfig& config, const Routes& routes) {
  return Model(config).network().forward_macs(routes);
}
ProductReads block_reads(const ModelConfig& config) { return Model(config).network().block_reads(); }

void initialise(Model& model, uint64_t seed) {
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

void PassRecord::keep_of_block(int64_t block) {
  const Recompute recompute =
      options.recompute_of_blocks.empty() ? options.recompute : options.recompute_of_blocks.at(size_t(block));
  stream.keep_cheap = recompute == Recompute::kNone ? KeepPolicy::kKeep : KeepPolicy::kRecompute;
  stream.keep_costly = recompute == Recompute::kBlock ? KeepPolicy::kRecompute : KeepPolicy::kKeep;
}

ModulationTable::ModulationTable(Model& model, int64_t rows) {
  DITRAIN_CHECK(model.has_modulations(), "a table for a model without modulations");
  stream_.batch = rows;
  stream_.inputs = std::make_shared<PassInputs>(rows);
  modulations_ = model.network().record_modulations(tape_, stream_);
}

ModelPass::ModelPass(Model& model, int64_t batch, autograd::Mode mode, const PassOptions& options)
    : tape_(mode),
      batch_(batch),
      inputs_(std::make_shared<PassInputs>(batch)),
      alone_(model.tensor_parallel().alone()),
      given_modulations_(options.given_modulations),
      routes_(options.routes),
      tokens_(model.config().tokens()) {
  DITRAIN_CHECK(
      options.recompute_of_blocks.empty() || int64_t(options.recompute_of_blocks.size()) == model.config().depth,
      "recomputation of another number of blocks");
  DITRAIN_CHECK(!given_modulations_ || (mode == autograd::Mode::kInference && model.has_modulations()),
                "modulations that backward does not reach, or that the model does not have");
  validate(routes_, model.config());
  if (options.layer_sync) validate(*options.layer_sync, model.config(), routes_);
  DITRAIN_CHECK(!options.layer_sync || mode == autograd::Mode::kTraining, "a loss without a gradient");
  for (const Route& route : routes_) {
    inputs_->remaining_tokens.emplace_back(size_t(batch * route.remaining_tokens(tokens_)));
    std::vector<int64_t>& remaining = inputs_->remaining_tokens.back();
    for (size_t i = 0; i < remaining.size(); ++i) remaining[i] = int64_t(i) % route.remaining_tokens(tokens_);
  }
  PassRecord record{.tape = tape_, .options = options, .stream = {}};
  record.stream.batch = batch;
  record.stream.tokens = tokens_;
  record.stream.inputs = inputs_;
  record.stream.activations = options.precision;
  record.stream.sink = options.sink;
  record.stream.tensor = model.tensor_parallel();
  model.network().record(record);
  image_ = record.image, dimage_ = record.dimage, out_ = record.out, dout_ = record.dout;
  modulations_ = record.modulations, cosines_ = record.cosines;
}

void ModelPass::modulate(ops::Context& ctx, const ModulationTable& table, const std::vector<int64_t>& row_of_sample) {
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

void ModelPass::draw_remaining_tokens(int64_t sample, const RandomKey& key) {
  for (size_t r = 0; r < routes_.size(); ++r)
    nn::draw_remaining_tokens(routes_[r], tokens_, key, r * uint64_t(tokens_),
                              remaining_tokens(r).data() + sample * routes_[r].remaining_tokens(tokens_));
}

void ModelPass::forward(ops::Context& ctx) {
  DITRAIN_CHECK(alone_ || ctx.team().num_clusters() == 1, "clusters of a rank that shares a replica");
  tape_.forward(ctx);
}

}  // namespace ditrain::nn
