#include "ditrain/optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/ops/elementwise.hpp"

namespace ditrain::optim {

void adamw_ema_step(ops::Context& ctx, const Config& config, const StepSettings& settings,
                    autograd::ParameterStore& parameters, const UpdateSlice& slice) {
  const double k = double(settings.step + 1);
  const kernels::AdamWStep step{.lr = settings.lr,
                                .beta1 = config.beta1,
                                .beta2 = config.beta2,
                                .eps = config.eps,
                                .weight_decay = config.weight_decay,
                                .bias1 = 1 - std::pow(config.beta1, k),
                                .bias2 = 1 - std::pow(config.beta2, k),
                                .ema_decay = settings.ema_decay,
                                .grad_scale = settings.grad_scale};
  const Pin<float> p(parameters.values), g(parameters.grads), m(parameters.exp_avg), v(parameters.exp_avg_sq),
      ema(parameters.ema);
  std::optional<Pin<BFloat16>> copy;
  if (parameters.values_bf16.defined()) copy.emplace(parameters.values_bf16);
  ctx.for_range(ops::WorkKind::kOptimizer, slice.arena.end - slice.arena.begin, kUpdateGrain,
                [&](int64_t begin, int64_t end, const parallel::Worker&) {
                  const int64_t at = slice.arena.begin + begin, state = slice.state + begin;
                  kernels::adamw_ema(step, g + at, p + at, m + state, v + state, ema + state,
                                     copy ? copy->get() + at : nullptr, end - begin);
                });
}

void adamw_ema_step(ops::Context& ctx, const Config& config, const StepSettings& settings,
                    autograd::ParameterStore& parameters) {
  adamw_ema_step(ctx, config, settings, parameters, {{0, parameters.arena_size()}, 0});
}

void copy_as_updated(ops::Context& ctx, const float* from, float* to, int64_t n) {
  ctx.for_range(n, kUpdateGrain, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    std::memcpy(to + begin, from + begin, size_t(end - begin) * sizeof(float));
  });
}

double gradient_norm(ops::Context& ctx, const autograd::ParameterStore& parameters) {
  return std::sqrt(ops::sum_squares(ctx, parameters.grads));
}

double clip_factor(double norm, double clip_norm) {
  return clip_norm > 0 ? std::min(1.0, clip_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace ditrain::optim
