// Process ddpm: Gaussian diffusion over the steps of a schedule. Its times are steps t = 0 (nearly clean) ... num_steps
// - 1 (nearly noise), which the model is given as they are; training draws them uniformly.
//   x_t = sqrt(A_t) x0 + sqrt(1 - A_t) noise;   see Schedule for A_t and Config::loss for the objectives
//   mse  = mean (target - out)^2, target by the prediction; times the weight of Config::loss_weight at t
//   vb   = mean KL(q(x_{t-1} | x_t, x0) || p(x_{t-1} | x_t)) / ln 2 for t > 0, and for t = 0 the negative
//          log-likelihood in bits of x0 under p discretised to 256 levels in [-1, 1], with a tanh approximation of the
//          normal distribution function and probabilities below 1e-12 set to 1e-12 (no gradient there)
// Source: Ho et al. 2020, section 3.3; Nichol and Dhariwal 2021, section 3.1
#pragma once
#include <cstdint>

#include "ditrain/diffusion/process.hpp"
#include "ditrain/diffusion/sampler.hpp"
#include "ditrain/diffusion/schedule.hpp"

namespace ditrain::diffusion {

/// What a model's output means at every step.
struct Rules {
  const Prediction* prediction = nullptr;
  Variance variance = Variance::kLearnedRange;  ///< never auto

  /// Channels of the model's output for data of `channels` channels: twice as many if the variance is learned.
  int64_t output_channels(int64_t channels) const { return (variance == Variance::kLearnedRange ? 2 : 1) * channels; }
};

class Ddpm final : public Process {
 public:
  /// Errors:   InputError if variance and learn_sigma contradict each other, for a loss_weight with
  ///           loss kl, and for a min_snr_gamma that is not above 0
  Ddpm(const Config& config, bool learn_sigma);

  const Config& config() const { return config_; }
  const Schedule& schedule() const { return schedule_; }
  const Rules& rules() const { return rules_; }

  int64_t output_channels(int64_t channels) const override { return rules_.output_channels(channels); }
  double draw_time(const RandomKey& key) const override;
  double spread_time(int64_t i, int64_t n) const override;
  double model_time(double time) const override;
  double data_share(double model_time) const override;
  void add_noise(double time, const float* x0, const float* noise, float* x_t, int64_t n) const override;
  LossTerms loss(const LossSample& sample) const override;
  double mse(const LossSample& sample) const override;

 private:
  Config config_;
  Schedule schedule_;
  Rules rules_;
};

/// Casts `process` to Ddpm. Errors: LogicFault if it is another process
const Ddpm& as_ddpm(const Process& process);

/// The mean of q(x_{t-1} | x_t, x0); its log-variance is schedule.posterior_log_variance_clipped[t].
/// Math:     mean = posterior_mean_coef1[t] x0 + posterior_mean_coef2[t] x_t
/// Shapes:   x0, x_t, mean [N, elements_per_sample]; t [N], steps of `schedule`; samples begin..end-1 are written
void q_posterior_mean(const Schedule& schedule, const float* x0, const float* x_t, const int64_t* t, float* mean,
                      int64_t elements_per_sample, int64_t begin, int64_t end);

/// Outputs of p_mean_variance, each [N, C, P] or null if not wanted.
struct PMeanVariance {
  float *mean = nullptr, *variance = nullptr, *log_variance = nullptr, *pred_x0 = nullptr;
};

/// Computes mean, variance and predicted clean data of the reverse process from a model's output, for samples
/// begin..end-1.
/// Math:     pred_x0 by the prediction, limited to [-1, 1] if clip_denoised;
///           mean = posterior_mean_coef1 pred_x0 + posterior_mean_coef2 x_t;
///           learned_range: log_variance = f log beta_t + (1 - f) posterior_log_variance_clipped, f = (v + 1) / 2;
///           fixed_large: variance = beta_t (at t = 0: posterior_variance[1]); fixed_small: posterior_variance (at t =
///           0: 0, with posterior_log_variance_clipped[0] as logarithm)
/// Shapes:   x_t [N, C, P]; t [N], steps of `schedule`; model_out [N, rules.output_channels(C), P]
/// Types:    f32, arithmetic f64
void p_mean_variance(const Schedule& schedule, const Rules& rules, const Shape& shape, bool clip_denoised,
                     const float* x_t, const int64_t* t, const float* model_out, const PMeanVariance& result,
                     int64_t begin, int64_t end);

/// Settings that are the same for every step of a loop.
struct StepSettings {
  bool clip_denoised = false;
  double eta = 0;
};

/// One batch of a step. x_prev may alias x_t; noise null stands for zeros.
struct StepBatch {
  const float* x_t = nullptr;        ///< [N, C, P]
  const int64_t* t = nullptr;        ///< [N] steps of the schedule
  const float* model_out = nullptr;  ///< [N, rules.output_channels(C), P]
  const float* noise = nullptr;      ///< [N, C, P] standard normal, or null
  float* x_prev = nullptr;           ///< [N, C, P]
};

/// A step of sampler ddpm, ancestral sampling, for samples begin..end-1.
/// Math:     x_{t-1} = mean + [t > 0] exp(log_variance / 2) noise, see p_mean_variance
/// Source:   Ho et al. 2020, algorithm 2. Types: f32, arithmetic f64
void ddpm_step(const Schedule& schedule, const Rules& rules, const Shape& shape, const StepSettings& settings,
               const StepBatch& batch, int64_t begin, int64_t end);

/// A step of sampler ddim, implicit sampling, for samples begin..end-1; the model's variance channels are ignored.
/// Math:     sigma = eta sqrt((1 - P_t) / (1 - A_t)) sqrt(1 - A_t / P_t); eps belongs to the (clipped) pred_x0;
///           x_{t-1} = sqrt(P_t) pred_x0 + sqrt(1 - P_t - sigma^2) eps + sigma noise; sigma is 0 at t = 0
/// Source:   Song et al. 2021, eq. 12 and 16. Types: f32, arithmetic f64
void ddim_step(const Schedule& schedule, const Rules& rules, const Shape& shape, const StepSettings& settings,
               const StepBatch& batch, int64_t begin, int64_t end);

}  // namespace ditrain::diffusion
