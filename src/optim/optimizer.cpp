#include "ditrain/optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/ops/elementwise.hpp"
#include "ditrain/optim/power_average.hpp"

namespace ditrain::optim {

void adamw_ema_step(ops::Context& ctx, const Config& config, const StepSettings& settings,
                    autograd::ParameterStore& parameters, const autograd::ArenaSlice& slice) {
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
  const int64_t n = slice.size();
  std::vector<Tensor> tensors{parameters.values.slice(slice.begin, {n}), parameters.gradients_of(slice),
                              parameters.state("exp_avg").of(slice), parameters.state("exp_avg_sq").of(slice),
                              parameters.kept.of(parameters.ema, slice)};
  if (parameters.values_bf16.defined()) tensors.push_back(parameters.values_bf16.slice(slice.begin, {n}));
  for_common_parts(tensors, [&](int64_t, const std::vector<Tensor>& part) {
    const Pin<float> p(part[0]), g(part[1]), m(part[2]), v(part[3]), ema(part[4]);
    std::optional<Pin<BFloat16>> copy;
    if (part.size() > 5) copy.emplace(part[5]);
    ctx.for_range(ops::WorkKind::kOptimizer, part[0].size(), kUpdateGrain,
                  [&](int64_t begin, int64_t end, const parallel::Worker&) {
                    kernels::adamw_ema(step, g + begin, p + begin, m + begin, v + begin, ema + begin,
                                       copy ? copy->get() + begin : nullptr, end - begin);
                  });
  });
}

void adamw_ema_step(ops::Context& ctx, const Config& config, const StepSettings& settings,
                    autograd::ParameterStore& parameters) {
  adamw_ema_step(ctx, config, settings, parameters, {0, parameters.arena_size()});
}

namespace {

void update_average(ops::Context& ctx, int64_t step, autograd::ParameterStore& parameters,
                    const autograd::OptimizerState& average, const autograd::ArenaSlice& slice) {
  const auto share = float(share_of_update(average.declared.exponent, step));
  for_common_parts({parameters.values.slice(slice.begin, {slice.size()}), average.of(slice)},
                   [&](int64_t, const std::vector<Tensor>& part) {
                     const Pin<float> values(part[0]), kept(part[1]);
                     ctx.for_range(ops::WorkKind::kOptimizer, part[0].size(), kUpdateGrain,
                                   [&](int64_t begin, int64_t end, const parallel::Worker&) {
                                     kernels::move_average(share, values + begin, kept + begin, end - begin);
                                   });
                   });
}

}  // namespace

void update(ops::Context& ctx, const Config& config, const StepSettings& settings, autograd::ParameterStore& parameters,
            const autograd::ArenaSlice& slice) {
  algorithm_of(config).update(ctx, config, settings, parameters, slice);
  for (const autograd::OptimizerState& state : parameters.states)
    if (state.declared.is_average()) update_average(ctx, settings.step, parameters, state, slice);
}

void take_weights(ops::Context& ctx, autograd::ParameterStore& parameters, const autograd::ArenaSlice& slice) {
  const int64_t n = slice.end - slice.begin;
  std::vector<Tensor> tensors{parameters.grads.slice(slice.begin, {n}), parameters.values.slice(slice.begin, {n})};
  if (parameters.values_bf16.defined()) tensors.push_back(parameters.values_bf16.slice(slice.begin, {n}));
  for_common_parts(tensors, [&](int64_t, const std::vector<Tensor>& part) {
    const Pin<float> from(part[0]), values(part[1]);
    std::optional<Pin<BFloat16>> copy;
    if (part.size() > 2) copy.emplace(part[2]);
    ctx.for_range(ops::WorkKind::kOptimizer, part[0].size(), kUpdateGrain,
                  [&](int64_t begin, int64_t end, const parallel::Worker&) {
                    std::memcpy(values + begin, from + begin, size_t(end - begin) * sizeof(float));
                    if (copy) kernels::convert(from + begin, *copy + begin, end - begin);
                  });
  });
}

void copy_as_updated(ops::Context& ctx, const Tensor& from, const Tensor& to) {
  for_common_parts({from, to}, [&](int64_t, const std::vector<Tensor>& part) {
    const Pin<float> x(part[0]), y(part[1]);
    ctx.for_range(part[0].size(), kUpdateGrain, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      std::memcpy(y + begin, x + begin, size_t(end - begin) * sizeof(float));
    });
  });
}

double gradient_norm(ops::Context& ctx, const autograd::ParameterStore& parameters) {
  return std::sqrt(ops::sum_squares(ctx, parameters.grads));
}

double clip_factor(double norm, double clip_norm) {
  return clip_norm > 0 ? std::min(1.0, clip_norm / (norm + 1e-6)) : 1.0;
}

bool squares_overflow(double norm, double clip_norm) {
  constexpr double kTooLarge = 1e18;  // no gradient of a sane run comes near it, and no element's square overflows
  return norm * clip_factor(norm, clip_norm) >= kTooLarge;
}

}  // namespace ditrain::optim
