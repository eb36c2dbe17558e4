#include "ditrain/nn/dit.hpp"

#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/kernels/random.hpp"

namespace ditrain::nn {

Parameter& Dit::add(const std::string& name, const Shape& full_shape, int64_t order, Cut cut) {
  const int64_t outputs = full_shape[0], inputs = num_elements(full_shape) / outputs;
  if (cut == Cut::kNone || tensor_.alone() || (cut == Cut::kInputs && full_shape.size() == 1))
    return parameters_.add(name, full_shape, order);
  autograd::Part part{.outer = 1, .length = outputs, .inner = inputs};
  Shape shape = full_shape;
  if (cut == Cut::kInputs)
    part = {.outer = outputs, .length = inputs}, shape = {outputs, inputs / tensor_.size};
  else
    shape[0] /= tensor_.size;
  if (cut == Cut::kThirds) part.outer = 3, part.length /= 3;
  part.begin = part.length / tensor_.size * tensor_.rank;
  part.end = part.begin + part.length / tensor_.size;
  Parameter& p = parameters_.add(name, std::move(shape), order);
  p.full_shape = full_shape, p.part = part;
  return p;
}

LinearWeights Dit::add_linear(const std::string& name, const Shape& weight_shape, int64_t order, Cut cut) {
  Parameter& w = add(name + ".weight", weight_shape, order, cut);
  return {&w, &add(name + ".bias", {weight_shape[0]}, order, cut)};
}

// Added in the reverse of the order in which gradients become final; `order` is the place in the state dict.
Dit::Dit(const DitConfig& config, const TensorParallel& tensor) : config_(config), tensor_(tensor) {
  validate(config);
  DITRAIN_CHECK(config.num_heads % tensor.size == 0 && config.mlp_size() % tensor.size == 0,
                config.name + " over " + std::to_string(tensor.size) + " ranks");
  const int64_t C = config.hidden_size, F = config.mlp_size(), P = config.patch_size;
  int64_t order = 0;
  patch_embed_.pos_embed = &parameters_.add("pos_embed", {1, config.tokens(), C}, order++, /*trainable=*/false);
  patch_embed_.proj = add_linear("x_embedder.proj", {C, config.in_channels, P, P}, order++);
  conditioning_.mlp0 = add_linear("t_embedder.mlp.0", {C, kTimestepFrequencies}, order++);
  conditioning_.mlp2 = add_linear("t_embedder.mlp.2", {C, C}, order++);
  if (config.num_classes > 0)
    conditioning_.label_table =
        &parameters_.add("y_embedder.embedding_table.weight", {config.label_rows(), C}, order++);
  for (int64_t i = 0; i < config.depth; ++i) {
    const std::string block = "blocks." + std::to_string(i) + ".";
    BlockWeights w;
    w.adaLN = add_linear(block + "adaLN_modulation.1", {kNumModulations * C, C}, order + 4);
    w.qkv = add_linear(block + "attn.qkv", {3 * C, C}, order, Cut::kThirds);
    w.proj = add_linear(block + "attn.proj", {C, C}, order + 1, Cut::kInputs);
    w.fc1 = add_linear(block + "mlp.fc1", {F, C}, order + 2, Cut::kOutputs);
    w.fc2 = add_linear(block + "mlp.fc2", {C, F}, order + 3, Cut::kInputs);
    order += 5;
    blocks_.push_back(w);
  }
  final_layer_.adaLN = add_linear("final_layer.adaLN_modulation.1", {2 * C, C}, order + 1);
  final_layer_.linear = add_linear("final_layer.linear", {P * P * config.out_channels(), C}, order);
}

namespace {

bool contains(const std::string& name, const char* part) { return name.find(part) != name.npos; }

void fill_uniform(float* p, int64_t n, const RandomKey& key, double bound) {
  kernels::fill_uniform(key, 0, p, n);
  for (int64_t i = 0; i < n; ++i) p[i] = float(bound * (2.0 * p[i] - 1.0));
}

void fill_normal(float* p, int64_t n, const RandomKey& key, float deviation) {
  key.fill_normal(p, n);  // the vectorised ones differ in last bits between instruction sets; weights should not
  for (int64_t i = 0; i < n; ++i) p[i] *= deviation;
}

// All n numbers of the full tensor.
void fill_full(const DitConfig& c, const Parameter& p, const RandomKey& key, float* full, int64_t n) {
  const bool zero = p.name.ends_with(".bias") || contains(p.name, "adaLN") || contains(p.name, "final_layer");
  if (p.name == "pos_embed") {
    const auto table = sincos_position_table(c.hidden_size, c.grid_height(), c.grid_width());
    std::copy(table.begin(), table.end(), full);
  } else if (zero) {
    std::fill_n(full, n, 0.0f);
  } else if (contains(p.name, "_embedder.mlp") || contains(p.name, "embedding_table")) {
    fill_normal(full, n, key, 0.02f);
  } else {
    const int64_t outputs = p.full_shape[0], inputs = n / outputs;
    fill_uniform(full, n, key, std::sqrt(6.0 / double(inputs + outputs)));
  }
}

}  // namespace

void initialise(Dit& model, uint64_t seed) {
  uint64_t number = 0;
  std::vector<float> full;
  for (Parameter* p : model.parameters().state_dict()) {
    const RandomKey key(seed, Stream::kInit, number++);
    const Pin<float> value(p->value);
    if (p->part.whole()) {
      fill_full(model.config(), *p, key, value, p->size());
      continue;
    }
    full.resize(size_t(num_elements(p->full_shape)));
    fill_full(model.config(), *p, key, full.data(), int64_t(full.size()));
    p->part.take(full.data(), value);
  }
}

namespace {

template <class... L>
void use_products(DType products, L&... layers) {
  ((layers.products = products), ...);
}

}  // namespace

DitPass::DitPass(Dit& model, int64_t batch, autograd::Mode mode, const PassOptions& options) : tape_(mode) {
  const DitConfig& c = model.config();
  const Shape BC{batch, c.hidden_size}, BTC{batch, c.tokens(), c.hidden_size};
  stream_.batch = batch;
  stream_.activations = options.precision;
  stream_.keep_cheap = options.recompute == Recompute::kNone ? KeepPolicy::kKeep : KeepPolicy::kRecompute;
  stream_.keep_costly = options.recompute == Recompute::kBlock ? KeepPolicy::kRecompute : KeepPolicy::kKeep;
  stream_.cond_BC = tape_.temporary("cond", BC);
  if (mode == autograd::Mode::kTraining) {
    stream_.dcond_BC = tape_.temporary("dcond", BC);
    stream_.dx_BTC = tape_.temporary("dx", BTC);
  }
  stream_.factors = options.adaLN_factors;
  stream_.tensor = model.tensor_parallel();
  if (!stream_.tensor.alone() && options.precision == DType::kBF16)
    stream_.partial_BTC = tape_.temporary("partial", BTC);
  // A node's output is the input that the next node keeps.
  std::function<void(ActivationRef)> connect;
  patch_embed_ = &tape_.record<PatchEmbed>(c, model.patch_embed_, stream_);
  if (options.want_input_gradient) patch_embed_->want_input_gradient(tape_);
  connect = [this](ActivationRef x) { patch_embed_->set_output(std::move(x)); };
  conditioning_ = &tape_.record<Conditioning>(c, model.conditioning_, stream_);
  std::vector<LinearWeights> adaLN;
  std::vector<BlockWeights> blocks = model.blocks_;
  FinalLayerWeights final_weights = model.final_layer_;
  use_products(options.precision, final_weights.adaLN, final_weights.linear);
  for (BlockWeights& b : blocks) {
    use_products(options.precision, b.adaLN, b.qkv, b.proj, b.fc1, b.fc2);
    adaLN.push_back(b.adaLN);
  }
  const auto& modulations = tape_.record<Modulations>(c, std::move(adaLN), final_weights.adaLN, stream_);
  for (int64_t i = 0; i < c.depth; ++i) {
    const BlockWeights& weights = blocks[size_t(i)];
    auto& attention = tape_.record<AttentionHalf>(c, i, weights, stream_, modulations);
    auto& mlp = tape_.record<MlpHalf>(c, i, weights, stream_, attention);
    connect(attention.x_BTC);
    connect = [&mlp](ActivationRef x) { mlp.set_output(std::move(x)); };
  }
  final_layer_ = &tape_.record<FinalLayer>(c, final_weights, stream_, modulations);
  connect(final_layer_->x_BTC);
}

void DitPass::forward(ops::Context& ctx) {
  DITRAIN_CHECK(stream_.tensor.alone() || ctx.team().num_clusters() == 1, "clusters of a rank that shares a replica");
  tape_.forward(ctx);
}

}  // namespace ditrain::nn
