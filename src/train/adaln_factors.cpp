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
  rows_.of_batch = config.train.global_batch;
  constexpr std::string_view kWeight = "adaLN_modulation.1.weight";
  for (autograd::Parameter* w : store.state_dict()) {
    if (!w->name.ends_with(kWeight) || rows_.of_batch * nn::FactorRows::width(*w) > w->size()) continue;
    layers_.push_back({w, &store.find(w->name.substr(0, w->name.rfind('.')) + ".bias")});
    rows_.weights.push_back(w);
    dy_elements_ = std::max(dy_elements_, rows_.of_batch * layers_.back().outputs());
    x_elements_ = std::max(x_elements_, rows_.of_batch * layers_.back().inputs());
  }
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
    factors += double(rows_.of_batch * nn::FactorRows::width(*layer.w)) * sizeof(float);
    matrices += double(layer.slice().size()) * wire_bytes_;
  }
  const double others = double(replicas_ - 1) / double(replicas_);
  return fmt::format(
      "adaLN gradients of {} layers: {} samples' factors are gathered, a step brings a rank {} instead of {}",
      layers_.size(), rows_.of_batch, format_bytes(size_t(others * factors)),
      format_bytes(size_t(2 * others * matrices)));
}

void AdalnFactors::allocate() { dy_ = Tensor({dy_elements_}), x_ = Tensor({x_elements_}); }

void AdalnFactors::declare(dist::GradientBuckets& buckets) const {
  for (int64_t k = 0; k < buckets.num_buckets(); ++k)
    if (const Layer* layer = layer_of(buckets.bucket(k)))
      buckets.gather_instead(k, rows_.of_batch * nn::FactorRows::width(*layer->w));
}

const AdalnFactors::Layer* AdalnFactors::layer_of(const parallel::Range& bucket) const {
  const auto found =
      std::find_if(layers_.begin(), layers_.end(), [&](const Layer& layer) { return layer.slice() == bucket; });
  return found == layers_.end() ? nullptr : &*found;
}

void AdalnFactors::multiply(ops::Context& ctx, const parallel::Range& bucket) {
  const Layer* layer = layer_of(bucket);
  DITRAIN_CHECK(layer != nullptr, "a bucket of other gradients");
  const int64_t rows = rows_.of_batch, N = layer->outputs(), K = layer->inputs();
  const Tensor dy = dy_.slice(0, {rows, N}), x = x_.slice(0, {rows, K});
  {
    const Pin<float> place(rows_.place_in(*layer->w)), dy_to(dy), x_to(x);
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
