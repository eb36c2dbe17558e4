#include "ditrain/train/low_rank_exchange.hpp"

#include <algorithm>
#include <cstring>

#include "ditrain/ops/linear.hpp"

namespace ditrain::train {

LowRankExchange::LowRankExchange(const plan::GradientPlan& plan, autograd::ParameterStore& store, ops::Context& ctx,
                                 bool squares)
    : plan_(plan), store_(store), ctx_(ctx), takes_squares_(squares) {
  for (const plan::FactorLayer& layer : plan.factors) weights_.push_back(&store.find(layer.weight));
}

bool LowRankExchange::take(ops::Context& ctx, const autograd::Parameter& w, const Tensor& x, const Tensor& dy,
                           autograd::Gradients) const {
  const auto found = std::find(weights_.begin(), weights_.end(), &w);
  if (found == weights_.end()) return false;
  const plan::FactorLayer& layer = plan_.factors[size_t(found - weights_.begin())];
  const int64_t N = layer.outputs, K = layer.inputs;
  const Pin<float> from_dy(dy), from_x(x), place(rows_of(w, layer));
  float* rows = place + first_ * (N + K);
  ctx.for_range(dy.dim(0), 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t s = begin; s < end; ++s) {
      std::memcpy(rows + s * (N + K), from_dy + s * N, size_t(N) * sizeof(float));
      std::memcpy(rows + s * (N + K) + N, from_x + s * K, size_t(K) * sizeof(float));
    }
  });
  return true;
}

void LowRankExchange::allocate(dist::GradientBuckets& buckets) {
  int64_t outputs = 0, inputs = 0;
  for (const plan::FactorLayer& layer : plan_.factors)
    outputs = std::max(outputs, layer.outputs), inputs = std::max(inputs, layer.inputs);
  dy_ = Tensor({plan_.factor_rows * outputs}), x_ = Tensor({plan_.factor_rows * inputs});
  for (int64_t k = 0; k < buckets.num_buckets(); ++k)
    if (const plan::FactorLayer* layer = layer_of(k))
      buckets.gather_instead(k, plan_.factor_rows * layer->row_elements());
}

const plan::FactorLayer* LowRankExchange::layer_of(int64_t bucket) const {
  const parallel::Range slice = plan_.buckets[bucket];
  const auto found = std::find_if(plan_.factors.begin(), plan_.factors.end(),
                                  [&](const plan::FactorLayer& layer) { return layer.slice == slice; });
  return found == plan_.factors.end() ? nullptr : &*found;
}

void LowRankExchange::arrived(int64_t k, PhaseLog& log) {
  const plan::FactorLayer* layer = layer_of(k);
  if (layer == nullptr) return;
  const PhaseTimer timer(log, Phase::kBackward);
  multiply(*layer);
  if (takes_squares_) squares_ += squares_of(ctx_, Pin<float>(store_.grads), layer->slice);
}

void LowRankExchange::multiply(const plan::FactorLayer& layer) {
  const autograd::Parameter &w = store_.find(layer.weight), &b = store_.find(layer.bias);
  const int64_t rows = plan_.factor_rows, N = layer.outputs, K = layer.inputs;
  const Tensor dy = dy_.slice(0, {rows, N}), x = x_.slice(0, {rows, K});
  {
    const Pin<float> place(rows_of(w, layer)), dy_to(dy), x_to(x);
    ctx_.for_range(rows, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      for (int64_t row = begin; row < end; ++row) {
        std::memcpy(dy_to + row * N, place + row * (N + K), size_t(N) * sizeof(float));
        std::memcpy(x_to + row * K, place + row * (N + K) + N, size_t(K) * sizeof(float));
      }
    });
  }
  ops::linear_backward_weight(ctx_, x, dy, w.grad, b.grad, /*accumulate=*/false);
}

}  // namespace ditrain::train
