// Samplers: single steps x_t -> x_{t-1}, classifier-free guidance, and the loop from noise to data around any callable
// model. Adding a sampler: one file with its step, one row in registry.cpp.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "ditrain/diffusion/config.hpp"
#include "ditrain/diffusion/schedule.hpp"

namespace ditrain::diffusion {

struct SamplerConfig {
  std::string kind = "ddpm";    ///< ddpm | ddim
  std::string spacing = "250";  ///< see space_timesteps
  double eta = 0;               ///< ddim only: 0 deterministic ... 1 as noisy as ddpm
  bool clip_denoised = false;   ///< limit the predicted clean data to [-1, 1] at every step (pixel models)
  double cfg_scale = 1;         ///< 1: no guidance, the model runs once per sample and step, else twice
  int64_t cfg_channels = 3;     ///< how many of the first channels are guided; -1: all

  /// Errors: InputError that names the key for an unknown kind, a spacing that does not suit num_steps, eta outside
  /// [0, 1], a cfg_scale that is negative or not finite, or a cfg_channels that is neither -1 nor at least 1.
  void validate(int64_t num_steps) const;
};

/// What every step of one loop has in common.
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

/// Ancestral sampling, for samples begin..end-1.
/// Math:     x_{t-1} = mean + [t > 0] exp(log_variance / 2) noise, see p_mean_variance
/// Source:   Ho et al. 2020, algorithm 2. Types: f32, arithmetic f64
void ddpm_step(const Schedule& schedule, const Rules& rules, const Shape& shape, const StepSettings& settings,
               const StepBatch& batch, int64_t begin, int64_t end);

/// Implicit sampling, for samples begin..end-1; the model's variance channels are ignored.
/// Math:     sigma = eta sqrt((1 - P_t) / (1 - A_t)) sqrt(1 - A_t / P_t); eps belongs to the (clipped) pred_x0;
///           x_{t-1} = sqrt(P_t) pred_x0 + sqrt(1 - P_t - sigma^2) eps + sigma noise; sigma is 0 at t = 0
/// Source:   Song et al. 2021, eq. 12 and 16. Types: f32, arithmetic f64
void ddim_step(const Schedule& schedule, const Rules& rules, const Shape& shape, const StepSettings& settings,
               const StepBatch& batch, int64_t begin, int64_t end);

/// Classifier-free guidance in place on a model output [2n, output_channels, P]: n conditional samples, then the same
/// n without their class.
/// Math:     for the first min(cfg_channels, channels) channels (-1: all `channels`) both halves become
///           uncond + cfg_scale (cond - uncond); all others, the variance among them, stay as the model gave them
/// Errors:   none; `channels` are those of the data, output_channels those of the model
void guided_output(float* model_out, int64_t n, int64_t channels, int64_t output_channels, int64_t pixels,
                   double cfg_scale, int64_t cfg_channels);

/// out [n, output channels, P] = model(x [n, C, P], t [n] as trained on (timestep_map applied), y [n], or null if the
/// model has no classes).
using ModelFn = std::function<void(const float* x, const int64_t* t, const int64_t* y, int64_t n, float* out)>;
/// out [C, P]: the standard normal noise of a sample at a loop step (0 is the noisiest). Not called where a step
/// adds none.
using NoiseFn = std::function<void(int64_t loop_step, int64_t sample, float* out)>;
/// Called after loop step `loop_step` of num_steps with the latents of that moment, laid out as SampleRequest::z.
using ProgressFn = std::function<void(int64_t loop_step, int64_t num_steps, const float* x)>;

struct SampleRequest {
  int64_t n = 0;                    ///< samples wanted
  float* z = nullptr;               ///< [n, C, P] in: standard normal noise, out: samples
  const int64_t* labels = nullptr;  ///< [n], or null for a model without classes
  int64_t null_class = -1;          ///< label that means "no class"; -1: the model has none
  /// z is [2n, C, P] and noise is asked for samples 0..2n-1: guidance carries the unconditional half along, stepped
  /// with its own outputs and noise but never shown to the model. Only for comparison with implementations that do so.
  bool keep_unconditional_half = false;
};

/// Runs all steps of a respaced schedule, from its last step to 0. With guidance the model gets [x, x] with labels
/// [labels, null class] in one call of 2n samples and the conditional half is kept.
/// Memory:   model output (twice the samples under guidance), one copy of z for noise, one of [x, x] under guidance
/// Errors:   InputError if cfg_scale != 1 and there are no labels or no null class. config has passed validate() with
/// the
///           steps of the base schedule; `schedule` is respace(base, config.spacing)
/// Threads:  runs in the caller; model and noise may use threads of their own
void sample_loop(const Schedule& schedule, const Rules& rules, const SamplerConfig& config, const Shape& shape,
                 const ModelFn& model, const SampleRequest& request, const NoiseFn& noise,
                 const ProgressFn& progress = {});

}  // namespace ditrain::diffusion
