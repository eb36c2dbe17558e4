// Process flow: flow matching on the straight line between noise and data (rectified flow).
//   x_t = t x0 + (1 - t) noise,   velocity = dx_t/dt = x0 - noise,   x0 = clean data
//   noise = noise_scale x standard normal
// Time runs as in SiT and JiT: t = 0 is noise, t = 1 is data, and the model is given t itself, in [0, 1]. (Stable
// Diffusion 3 and diffusers count the other way, in sigma = 1 - t: a logit-normal mean of theirs is -time_mean here.)
//   prediction velocity: loss = mean (velocity - out)^2                                          (SiT)
//   prediction x0:       loss = mean (x0 - out)^2 / max(1 - t, 0.05)^2, which is the same square of velocities, with
//                        its weight bounded near the data                                        (JiT)
// Times in training: u uniform in (0, 1), or 1 / (1 + exp(-(time_mean + time_deviation z))) with z normal; then
// shifted. Sampling walks from t = 0 to 1 on an even grid, shifted in the same way. The model has no variance:
// learn_sigma is refused. Differs from JiT: only the loss is bounded near the data; a sampler's last step reaches the
// predicted clean data. Source: Ma et al. 2024 (SiT); Esser et al. 2024 (Stable Diffusion 3), section 5.3.2; Li and He
// 2025 (JiT), section 4
#pragma once
#include <cstdint>
#include <vector>

#include "ditrain/diffusion/process.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "ditrain/diffusion/sampler.hpp"

namespace ditrain::diffusion {

/// Shifts a time towards noise (s > 1).
/// Math:     1 - sigma', sigma' = s sigma / (1 + (s - 1) sigma), sigma = 1 - t. For s = 1 it is t
double shift_time(double t, double s);

/// Math:     1 / (1 + exp(-(mean + deviation z)))
double logit_normal_time(double z, double mean, double deviation);

class Flow final : public Process {
 public:
  /// Errors:   InputError for learn_sigma, loss kl, time keys or a noise_scale out of range, and for time_mean or
  ///           time_deviation without logit_normal times
  Flow(const Config& config, bool learn_sigma);

  const Config& config() const { return config_; }

  int64_t output_channels(int64_t channels) const override { return channels; }
  double draw_time(const RandomKey& key) const override;
  double spread_time(int64_t i, int64_t n) const override;
  double model_time(double time) const override { return time; }
  double data_share(double model_time) const override;
  void add_noise(double time, const float* x0, const float* noise, float* x_t, int64_t n) const override;
  LossTerms loss(const LossSample& sample) const override;
  double mse(const LossSample& sample) const override;

  /// The times of a sampler, from 0 to 1: one more than steps. Sections of the spacing count from the data, as those of
  /// a schedule do. Errors: InputError for a spacing "ddimN", and for listed times that do not rise from 0 to 1
  std::vector<double> sampling_times(const Spacing& spacing) const;
  /// Whether velocity() is defined at t = 1: only if the model predicts the velocity and nothing is clipped.
  bool has_final_velocity(bool clip_denoised) const;
  /// Converts the model's output to a velocity; clip_denoised limits the predicted clean data to [-1, 1].
  /// Math:     out, or (x0 - x) / (1 - t) if the model predicts x0, or if x0 = x + (1 - t) out was clipped
  void velocity(double t, const float* x, const float* out, bool clip_denoised, float* v, int64_t n) const;

 private:
  Prediction::Target target_at(double time) const;
  Config config_;
};

/// Casts `process` to Flow. Errors: LogicFault if it is another process
const Flow& as_flow(const Process& process);

}  // namespace ditrain::diffusion
