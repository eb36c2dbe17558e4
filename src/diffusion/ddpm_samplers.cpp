// The samplers of process ddpm: ddpm (ancestral steps), ddim (implicit steps) and dpm++.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/diffusion/ddpm.hpp"
#include "parts.hpp"

namespace ditrain::diffusion {

void ddpm_step(const Schedule& schedule, const Rules& rules, const Shape& shape, const StepSettings& settings,
               const StepBatch& batch, int64_t begin, int64_t end) {
  const int64_t n = shape.elements(), out_stride = rules.output_channels(shape.channels) * shape.pixels;
  for (int64_t sample = begin; sample < end; ++sample) {
    const ReverseStep step(schedule, rules, batch.t[sample]);
    const float* out = batch.model_out + sample * out_stride;
    const bool noisy = batch.t[sample] > 0 && batch.noise != nullptr;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = sample * n + i;
      const double x_t = batch.x_t[at];
      double x = step.mean(step.predict_x0(x_t, out[i], settings.clip_denoised), x_t);
      if (noisy) x += std::exp(0.5 * step.log_variance(out_stride > n ? out[n + i] : 0)) * batch.noise[at];
      batch.x_prev[at] = static_cast<float>(x);
    }
  }
}

void ddim_step(const Schedule& schedule, const Rules& rules, const Shape& shape, const StepSettings& settings,
               const StepBatch& batch, int64_t begin, int64_t end) {
  const int64_t n = shape.elements(), out_stride = rules.output_channels(shape.channels) * shape.pixels;
  for (int64_t sample = begin; sample < end; ++sample) {
    const int64_t t = batch.t[sample];
    const ReverseStep step(schedule, rules, t);
    const double now = schedule.alphas_cumprod[t], prev = schedule.alphas_cumprod_prev[t];
    const double sigma = settings.eta * std::sqrt((1 - prev) / (1 - now)) * std::sqrt(1 - now / prev);
    const double keep_x0 = std::sqrt(prev);
    const double keep_eps = std::sqrt(std::max(0.0, 1 - prev - sigma * sigma));  // rounding may go below 0 at eta 1
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = sample * n + i;
      const double x_t = batch.x_t[at];
      const double x0 = step.predict_x0(x_t, batch.model_out[sample * out_stride + i], settings.clip_denoised);
      double x = keep_x0 * x0 + keep_eps * step.epsilon_of(x_t, x0);
      if (batch.noise != nullptr) x += sigma * batch.noise[at];
      batch.x_prev[at] = static_cast<float>(x);
    }
  }
}

namespace {

/// A run over the steps of a respaced schedule, from its last step to 0, with one evaluation each.
class ScheduleRun final : public SamplerRun {
 public:
  using Step = decltype(ddpm_step);

  ScheduleRun(const Process& process, const SamplerConfig& config, const Shape& shape, int64_t n, Step* step,
              bool is_noisy)
      : schedule_(respace(as_ddpm(process).schedule(), config.spacing)),
        rules_(as_ddpm(process).rules()),
        settings_{.clip_denoised = config.clip_denoised, .eta = config.eta},
        shape_(shape),
        step_(step),
        is_noisy_(is_noisy),
        t_(static_cast<size_t>(n)) {}

  int64_t num_steps() const override { return schedule_.num_steps(); }
  bool needs_noise(int64_t k) const override { return is_noisy_ && k < num_steps() - 1; }
  void step(int64_t k, const GuidedModel& model, const float* noise, float* x) override {
    const int64_t t = num_steps() - 1 - k;
    const float* out = model(x, static_cast<double>(schedule_.timestep_map[t]));
    std::fill(t_.begin(), t_.end(), t);
    step_(schedule_, rules_, shape_, settings_,
          {.x_t = x, .t = t_.data(), .model_out = out, .noise = noise, .x_prev = x}, 0,
          static_cast<int64_t>(t_.size()));
  }

 private:
  const Schedule schedule_;
  const Rules rules_;
  const StepSettings settings_;
  const Shape shape_;
  Step* const step_;
  const bool is_noisy_;
  std::vector<int64_t> t_;
};

}  // namespace

std::unique_ptr<SamplerRun> start_ddpm(const Process& process, const SamplerConfig& config, const Shape& shape,
                                       int64_t n) {
  return std::make_unique<ScheduleRun>(process, config, shape, n, ddpm_step, /*is_noisy=*/true);
}

std::unique_ptr<SamplerRun> start_ddim(const Process& process, const SamplerConfig& config, const Shape& shape,
                                       int64_t n) {
  return std::make_unique<ScheduleRun>(process, config, shape, n, ddim_step, config.eta > 0);
}

// Sampler dpm++: DPM-Solver++(2M), deterministic and multistep, for every prediction of process ddpm. With alpha and
// sigma of the levels s (now), r (the one before) and t (the next), lambda = ln(alpha / sigma) and h = lambda_t -
// lambda_s, and m the predicted clean data:
//   x_t = sigma_t / sigma_s x_s + alpha_t (1 - e^-h) (m_s + (m_s - m_r) h / (2 (lambda_s - lambda_r)))
// The first step has no m_r and leaves its term out; so does the last, which goes to sigma_t = 0 and returns m_s.
// Step 0 of the process, which is nearly clean, is not visited: as far from its neighbours in lambda as it is, the
// second order would reach too far. "N" is "N+1" of the other samplers without it; "ddimN" lies so that it ends at the
// last step. Source: Lu et al. 2022, algorithm 2, midpoint; the ends as in diffusers' DPMSolverMultistepScheduler

namespace {

/// The counts as a text, with one more step in the first section, where step 0 lies.
std::string one_more(std::vector<int64_t> counts) {
  ++counts.front();
  std::string text;
  for (const int64_t count : counts) text += (text.empty() ? "" : ",") + std::to_string(count);
  return text;
}

/// Whether the first section has room for one more step.
bool fits(int64_t num_steps, const std::vector<int64_t>& counts) {
  const auto sections = static_cast<int64_t>(counts.size());
  return counts.front() < num_steps / sections + (num_steps % sections > 0 ? 1 : 0);
}

Spacing without_step_0(int64_t num_steps, const Spacing& spacing) {
  if (!spacing.listed().empty()) return spacing;
  std::vector<int64_t> steps = space_timesteps(num_steps, spacing);
  if (spacing.is_strided()) {
    const int64_t rest = num_steps - 1 - steps.back();
    for (int64_t& step : steps) step += rest;
  } else if (fits(num_steps, spacing.counts())) {
    steps = space_timesteps(num_steps, one_more(spacing.counts()));
    steps.erase(steps.begin());
  }
  return Spacing::at({steps.begin(), steps.end()});
}

double log_snr_half(const Level& level) { return -std::log(level.sigma_by_alpha); }

class DpmRun final : public SamplerRun {
 public:
  DpmRun(const Ddpm& process, const SamplerConfig& config, const Shape& shape, int64_t n)
      : schedule_(respace(process.schedule(), without_step_0(process.schedule().num_steps(), config.spacing))),
        rules_(process.rules()),
        clip_(config.clip_denoised),
        shape_(shape),
        n_(n),
        last_x0_(static_cast<size_t>(n * shape.elements())) {}

  int64_t num_steps() const override { return schedule_.num_steps(); }

  void step(int64_t k, const GuidedModel& model, const float* /*noise*/, float* x) override {
    const int64_t s = num_steps() - 1 - k;
    const Coefficients c = coefficients(s);
    const CleanData clean(rules_.prediction->clean(level_at(schedule_, s)));
    const float* out = model(x, static_cast<double>(schedule_.timestep_map[s]));
    const int64_t elements = shape_.elements(), stride = rules_.output_channels(shape_.channels) * shape_.pixels;
    for (int64_t sample = 0; sample < n_; ++sample) {
      for (int64_t i = 0; i < elements; ++i) {
        const int64_t at = sample * elements + i;
        const double x0 = clean(x[at], out[sample * stride + i], clip_);
        const double slope = c.by_difference == 0 ? 0 : c.by_difference * (x0 - last_x0_[at]);
        x[at] = static_cast<float>(c.by_x * x[at] + c.by_x0 * (x0 + slope));
        last_x0_[at] = x0;
      }
    }
  }

 private:
  struct Coefficients {
    double by_x, by_x0, by_difference;
  };

  Coefficients coefficients(int64_t s) const {
    if (s == 0) return {.by_x = 0, .by_x0 = 1, .by_difference = 0};
    const Level now = level_at(schedule_, s), next = level_at(schedule_, s - 1);
    const double h = log_snr_half(next) - log_snr_half(now);
    Coefficients c{.by_x = next.sigma / now.sigma, .by_x0 = -next.alpha * std::expm1(-h), .by_difference = 0};
    if (s + 1 < num_steps()) {
      c.by_difference = 0.5 * h / (log_snr_half(now) - log_snr_half(level_at(schedule_, s + 1)));
    }
    return c;
  }

  const Schedule schedule_;
  const Rules rules_;
  const bool clip_;
  const Shape shape_;
  const int64_t n_;
  std::vector<double> last_x0_;
};

}  // namespace

std::unique_ptr<SamplerRun> start_dpm(const Process& process, const SamplerConfig& config, const Shape& shape,
                                      int64_t n) {
  const Ddpm& ddpm = as_ddpm(process);
  const Variance variance = ddpm.config().variance;
  if (variance == Variance::kFixedLarge || variance == Variance::kFixedSmall) {
    refuse("diffusion", "sampler dpm++ adds no noise, of which variance would be the size",
           "variance " + std::string(word_of(variance)), "variance auto", "sampler ddpm or ddim");
  }
  return std::make_unique<DpmRun>(ddpm, config, shape, n);
}

}  // namespace ditrain::diffusion
