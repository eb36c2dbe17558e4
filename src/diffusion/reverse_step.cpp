#include "reverse_step.hpp"

#include <string>

#include "ditrain/base/error.hpp"

namespace ditrain::diffusion {

void check_step(const Schedule& schedule, int64_t t) {
  DITRAIN_CHECK(t >= 0 && t < schedule.num_steps(),
                "t = " + std::to_string(t) + " of " + std::to_string(schedule.num_steps()) + " steps");
}

Level level_at(const Schedule& schedule, int64_t t) {
  check_step(schedule, t);
  return {.alpha = schedule.sqrt_alphas_cumprod[t],
          .sigma = schedule.sqrt_one_minus_alphas_cumprod[t],
          .inverse_alpha = schedule.sqrt_recip_alphas_cumprod[t],
          .sigma_by_alpha = schedule.sqrt_recipm1_alphas_cumprod[t]};
}

ReverseStep::ReverseStep(const Schedule& schedule, const Rules& rules, int64_t t)
    : clean_(rules.prediction->clean(level_at(schedule, t))), learned_(rules.variance == Variance::kLearnedRange) {
  sqrt_recip_ = schedule.sqrt_recip_alphas_cumprod[t];
  sqrt_recipm1_ = schedule.sqrt_recipm1_alphas_cumprod[t];
  coef1_ = schedule.posterior_mean_coef1[t];
  coef2_ = schedule.posterior_mean_coef2[t];
  min_log_ = schedule.posterior_log_variance_clipped[t];
  max_log_ = std::log(schedule.betas[t]);
  fixed_variance_ = schedule.posterior_variance[t];
  fixed_log_variance_ = min_log_;
  if (rules.variance == Variance::kFixedLarge) {
    // At t = 0 the variance is only a likelihood's; beta_0 makes a poor one, the posterior's first entry a better.
    fixed_log_variance_ = t == 0 ? min_log_ : max_log_;
    fixed_variance_ = t == 0 ? std::exp(min_log_) : schedule.betas[t];
  }
}

}  // namespace ditrain::diffusion
