#include "ditrain/train/adaln_factors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ditrain/base/error.hpp"
#include "ditrain/ops/linear.hpp"
#include "ditrain/train/memory_plan.hpp"

namespace ditrain::train {

bool products_are_equal_on_all_ranks(const Config& config) {
  return config.kernels.gemm == "own" || config.kernels.gemm == "ref";
}

AdalnFactors::AdalnFactors(const Config& config, autograd::ParameterStore& store, int replicas)
    : replicas_(replicas), wire_bytes_(config.dist.wire == "bf16" ? 2 : 4) {
  if (replicas == 1 || !config.dist.engine || config.dist.reproducible || config.dist.adaln == "reduce") return;
  if (!products_are_equal_on_all_ranks(config)) return;
  samples_ = config.train.global_batch;
  for (autograd::Parameter* w : store.state_dict()) {
    if (!w->offers_gradient) continue;
    const Layer layer{w, &store.find(w->name.substr(0, w->name.rfind('.')) + ".bias")};
    if (samples_ * layer.row() > w->size()) continue;
    layers_.push_back(layer);
    dy_elements_ = std::max(dy_elements_, samples_ * layer.outputs());
    x_elements_ = std::max(x_elements_, samples_ * layer.inputs());
  }
}

bool AdalnFactors::take(ops::Context& ctx, const autograd::Parameter& w, const Tensor& x, const Tensor& dy,
                        autograd::Gradients) const {
  const auto layer = std::find_if(layers_.begin(), layers_.end(), [&](const Layer& l) { return l.w == &w; });
  if (layer == layers_.end()) return false;
  const int64_t N = layer->outputs(), K = layer->inputs();
  const Pin<float> from_dy(dy), from_x(x), place(rows_of(*layer));
  float* rows = place + first_ * (N + K);
  ctx.for_range(dy.dim(0), 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t s = begin; s < end; ++s) {
      std::memcpy(rows + s * (N + K), from_dy + s * N, size_t(N) * sizeof(float));
      std::memcpy(rows + s * (N + K) + N, from_x + s * K, size_t(K) * sizeof(float));
    }
  });
  return true;
}

std::vector<parallel::Range> AdalnFactors::slices() const {
  std::vector<parallel::Range> slices;
  for (const Layer& layer : layers_) slices.push_back(layer.slice());
  return slices;
}

size_t AdalnFactors::scratch_bytes() const { return size_t(dy_elements_ + x_elements_) * sizeof(float); }

std::string AdalnFactors::describe() const {
  if (layers_.empty()) return "";
  double factors = 0, matrices = 0;
  for (const Layer& layer : layers_) {
    factors += double(samples_ * layer.row()) * sizeof(float);
    matrices += double(layer.slice().size()) * wire_bytes_;
  }
  const double others = double(replicas_ - 1) / double(replicas_);
  return fmt::format(
      "adaLN gradients of {} layers: {} samples' factors are gathered, a step brings a rank {} instead of {}",
      layers_.size(), samples_, format_bytes(size_t(others * factors)), format_bytes(size_t(2 * others * matrices)));
}

void AdalnFactors::allocate() { dy_ = Tensor({dy_elements_}), x_ = Tensor({x_elements_}); }

void AdalnFactors::declare(dist::GradientBuckets& buckets) const {
  for (int64_t k = 0; k < buckets.num_buckets(); ++k)
    if (const Layer* layer = layer_of(buckets.bucket(k))) buckets.gather_instead(k, samples_ * layer->row());
}

const AdalnFactors::Layer* AdalnFactors::layer_of(const parallel::Range& bucket) const {
  const auto found =
      std::find_if(layers_.begin(), layers_.end(), [&](const Layer& layer) { return layer.slice() == bucket; });
  return found == layers_.end() ? nullptr : &*found;
}

void AdalnFactors::multiply(ops::Context& ctx, const parallel::Range& bucket) {
  const Layer* layer = layer_of(bucket);
  DITRAIN_CHECK(layer != nullptr, "a bucket of other gradients");
  const int64_t rows = samples_, N = layer->outputs(), K = layer->inputs();
  const Tensor dy = dy_.slice(0, {rows, N}), x = x_.slice(0, {rows, K});
  {
    const Pin<float> place(rows_of(*layer)), dy_to(dy), x_to(x);
    ctx.for_range(rows, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      for (int64_t row = begin; row < end; ++row) {
        std::memcpy(dy_to + row * N, place + row * (N + K), size_t(N) * sizeof(float));
        std::memcpy(x_to + row * K, place + row * (N + K) + N, size_t(K) * sizeof(float));
      }
    });
  }
  ops::linear_backward_weight(ctx, x, dy, layer->w->grad, layer->b->grad, /*accumulate=*/false);
}

}  // namespace ditrain::train
