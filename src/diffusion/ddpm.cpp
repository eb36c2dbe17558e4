// Process ddpm: steps of a schedule, and mean and variance of the way back.
#include "ditrain/diffusion/ddpm.hpp"

#include <string>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "parts.hpp"

namespace ditrain::diffusion {

namespace {

Rules make_rules(const Config& config, bool learn_sigma) {
  const Variance able = learn_sigma ? Variance::kLearnedRange : Variance::kFixedLarge;
  const Variance variance = config.variance == Variance::kAuto ? able : config.variance;
  if ((variance == Variance::kLearnedRange) != learn_sigma) {
    refuse("diffusion", "variance does not fit the model",
           std::string(word_of(config.variance)) + " with learn_sigma " + (learn_sigma ? "on" : "off"),
           learn_sigma ? "learned_range" : "fixed_large or fixed_small", "variance: auto");
  }
  return {.prediction = config.prediction, .variance = variance};
}

void check_weights(const Config& config) {
  if (config.loss == named<Objective>("kl") && config.loss_weight != default_row<LossWeight>()) {
    refuse("diffusion", "loss kl has no square error that loss_weight could weigh",
           std::string(config.loss_weight->name), std::string(default_row<LossWeight>()->name), "diffusion.loss: mse");
  }
  if (!(config.min_snr_gamma > 0 && std::isfinite(config.min_snr_gamma))) {
    refuse("diffusion", "min_snr_gamma out of range", std::to_string(config.min_snr_gamma), "a number above 0");
  }
}

/// out = ca[t] a + cb[t] b
void combine(const Schedule& schedule, const std::vector<double>& ca, const float* a, const std::vector<double>& cb,
             const float* b, int64_t t, float* out, int64_t n) {
  check_step(schedule, t);
  kernels::scale_add(static_cast<float>(ca[t]), a, static_cast<float>(cb[t]), b, out, n);
}

void store(float* out, int64_t i, double value) {
  if (out != nullptr) out[i] = static_cast<float>(value);
}

}  // namespace

Ddpm::Ddpm(const Config& config, bool learn_sigma)
    : Process(*config.process),
      config_(config),
      schedule_(make_schedule(*config.schedule, config.num_steps)),
      rules_(make_rules(config, learn_sigma)) {
  check_weights(config);
}

double Ddpm::draw_time(const RandomKey& key) const {
  return static_cast<double>(key.below(0, static_cast<uint64_t>(schedule_.num_steps())));
}

double Ddpm::spread_time(int64_t i, int64_t n) const {
  return static_cast<double>((2 * i + 1) * schedule_.num_steps() / (2 * n));
}

double Ddpm::model_time(double time) const {
  return static_cast<double>(schedule_.timestep_map[static_cast<size_t>(time)]);
}

double Ddpm::data_share(double model_time) const {
  const Level level = level_at(schedule_, static_cast<int64_t>(model_time));
  return level.alpha / (level.alpha + level.sigma);
}

void Ddpm::add_noise(double time, const float* x0, const float* noise, float* x_t, int64_t n) const {
  combine(schedule_, schedule_.sqrt_alphas_cumprod, x0, schedule_.sqrt_one_minus_alphas_cumprod, noise,
          static_cast<int64_t>(time), x_t, n);
}

LossTerms Ddpm::loss(const LossSample& sample) const {
  const auto t = static_cast<int64_t>(sample.time);
  check_step(schedule_, t);
  return config_.loss->sample({.process = *this, .at = sample, .t = t});
}

double Ddpm::mse(const LossSample& sample) const {
  const Level level = level_at(schedule_, static_cast<int64_t>(sample.time));
  return mean_square_error(sample, rules_.prediction->target(level), 0, nullptr);
}

const Ddpm& as_ddpm(const Process& process) {
  const auto* ddpm = dynamic_cast<const Ddpm*>(&process);
  DITRAIN_CHECK(ddpm != nullptr, "process " + std::string(process.kind().name) + " is not ddpm");
  return *ddpm;
}

void q_posterior_mean(const Schedule& schedule, const float* x0, const float* x_t, const int64_t* t, float* mean,
                      int64_t elements_per_sample, int64_t begin, int64_t end) {
  for (int64_t sample = begin; sample < end; ++sample) {
    const int64_t first = sample * elements_per_sample;
    combine(schedule, schedule.posterior_mean_coef1, x0 + first, schedule.posterior_mean_coef2, x_t + first, t[sample],
            mean + first, elements_per_sample);
  }
}

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

void p_mean_variance(const Schedule& schedule, const Rules& rules, const Shape& shape, bool clip_denoised,
                     const float* x_t, const int64_t* t, const float* model_out, const PMeanVariance& result,
                     int64_t begin, int64_t end) {
  const int64_t n = shape.elements(), out_stride = rules.output_channels(shape.channels) * shape.pixels;
  for (int64_t sample = begin; sample < end; ++sample) {
    const ReverseStep step(schedule, rules, t[sample]);
    const float* out = model_out + sample * out_stride;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = sample * n + i;
      const double x0 = step.predict_x0(x_t[at], out[i], clip_denoised);
      const double log_variance = step.log_variance(out_stride > n ? out[n + i] : 0);
      store(result.pred_x0, at, x0);
      store(result.mean, at, step.mean(x0, x_t[at]));
      store(result.log_variance, at, log_variance);
      store(result.variance, at, step.variance(log_variance));
    }
  }
}

}  // namespace ditrain::diffusion
