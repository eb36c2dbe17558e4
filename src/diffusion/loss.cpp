// The forward process, and the walk over the samples of a batch.
#include "ditrain/diffusion/loss.hpp"

#include "ditrain/base/error.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "reverse_step.hpp"

namespace ditrain::diffusion {

namespace {

/// out = ca[t] a + cb[t] b
void combine(const Schedule& schedule, const std::vector<double>& ca, const float* a, const std::vector<double>& cb,
             const float* b, const int64_t* t, float* out, int64_t elements, int64_t begin, int64_t end) {
  for (int64_t sample = begin; sample < end; ++sample) {
    check_step(schedule, t[sample]);
    const auto wa = static_cast<float>(ca[t[sample]]), wb = static_cast<float>(cb[t[sample]]);
    const int64_t first = sample * elements;
    kernels::scale_add(wa, a + first, wb, b + first, out + first, elements);
  }
}

}  // namespace

void q_sample(const Schedule& schedule, const float* x0, const float* noise, const int64_t* t, float* x_t,
              int64_t elements_per_sample, int64_t begin, int64_t end) {
  combine(schedule, schedule.sqrt_alphas_cumprod, x0, schedule.sqrt_one_minus_alphas_cumprod, noise, t, x_t,
          elements_per_sample, begin, end);
}

void q_posterior_mean(const Schedule& schedule, const float* x0, const float* x_t, const int64_t* t, float* mean,
                      int64_t elements_per_sample, int64_t begin, int64_t end) {
  combine(schedule, schedule.posterior_mean_coef1, x0, schedule.posterior_mean_coef2, x_t, t, mean, elements_per_sample,
          begin, end);
}

void training_loss(const Schedule& schedule, const Rules& rules, const Shape& shape, const LossBatch& batch,
                   double grad_weight, float* dout, LossTerms* terms, int64_t begin, int64_t end) {
  DITRAIN_CHECK(rules.objective != nullptr, "rules come from make_rules");
  const int64_t in = shape.elements(), out = rules.output_channels(shape.channels) * shape.pixels;
  for (int64_t i = begin; i < end; ++i) {
    check_step(schedule, batch.t[i]);
    terms[i] = rules.objective->sample({.schedule = schedule,
                                        .rules = rules,
                                        .shape = shape,
                                        .x0 = batch.x0 + i * in,
                                        .x_t = batch.x_t + i * in,
                                        .noise = batch.noise + i * in,
                                        .t = batch.t[i],
                                        .out = batch.model_out + i * out,
                                        .grad_weight = grad_weight,
                                        .dout = dout == nullptr ? nullptr : dout + i * out});
  }
}

}  // namespace ditrain::diffusion
