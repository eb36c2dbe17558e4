// Process ddpm: steps of a schedule.
#include "ditrain/base/error.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "objectives.hpp"
#include "reverse_step.hpp"

namespace ditrain::diffusion {

namespace {

Rules make_rules(const Config& config, bool learn_sigma) {
  const Variance able = learn_sigma ? Variance::kLearnedRange : Variance::kFixedLarge;
  const Variance variance = config.variance == Variance::kAuto ? able : config.variance;
  if ((variance == Variance::kLearnedRange) != learn_sigma) {
    throw InputError(
        {.where = "diffusion",
         .what = "variance does not fit the model",
         .got = std::string(word_of(config.variance)) + " with learn_sigma " + (learn_sigma ? "on" : "off"),
         .expected = learn_sigma ? "learned_range" : "fixed_large or fixed_small",
         .hint = "variance: auto"});
  }
  return {.prediction = config.prediction, .variance = variance};
}

void check_weights(const Config& config) {
  if (config.loss->sample == kl_loss && config.loss_weight != default_row<LossWeight>()) {
    throw InputError({.where = "diffusion",
                      .what = "loss kl has no square error that loss_weight could weigh",
                      .got = std::string(config.loss_weight->name),
                      .expected = std::string(default_row<LossWeight>()->name),
                      .hint = "diffusion.loss: mse"});
  }
  if (!(config.min_snr_gamma > 0 && std::isfinite(config.min_snr_gamma))) {
    throw InputError({.where = "diffusion",
                      .what = "min_snr_gamma out of range",
                      .got = std::to_string(config.min_snr_gamma),
                      .expected = "a number above 0"});
  }
}

/// out = ca[t] a + cb[t] b
void combine(const Schedule& schedule, const std::vector<double>& ca, const float* a, const std::vector<double>& cb,
             const float* b, int64_t t, float* out, int64_t n) {
  check_step(schedule, t);
  kernels::scale_add(static_cast<float>(ca[t]), a, static_cast<float>(cb[t]), b, out, n);
}

}  // namespace

Ddpm::Ddpm(const Config& config, bool learn_sigma)
    : Process(*config.process),
      config_(config),
      schedule_(make_schedule(*config.schedule, config.num_steps)),
      rules_(make_rules(config, learn_sigma)) {
  check_weights(config);
}

std::unique_ptr<Process> make_ddpm(const Config& config, bool learn_sigma) {
  return std::make_unique<Ddpm>(config, learn_sigma);
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

}  // namespace ditrain::diffusion
