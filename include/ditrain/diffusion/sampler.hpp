// Sampling: classifier-free guidance, and the loop from noise to data around any callable model.
// Adding a sampler: its run in ddpm_samplers.cpp or flow_samplers.cpp, one row in registry.cpp.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "ditrain/base/condition.hpp"
#include "ditrain/diffusion/process.hpp"
#include "ditrain/diffusion/schedule.hpp"

namespace ditrain::diffusion {

struct Sampler;

struct SamplerConfig {
  const Sampler* sampler = nullptr;  ///< a row of the registry; null: the default of the process
  Spacing spacing = "250";
  double eta = 0;              ///< ddim: 0 deterministic ... 1 as noisy as ddpm
  bool clip_denoised = false;  ///< limit the predicted clean data to [-1, 1] at every step (pixel models)
  double cfg_scale = 1;        ///< 1: no guidance, one model runs once per sample and evaluation; else see sample_loop
  int64_t cfg_channels = -1;   ///< how many of the first channels are guided (the reference: 3); -1: all
  /// Guidance acts in this interval only; outside, the model runs once per sample and evaluation, with the label.
  /// Source: Kynkaanniemi et al. 2024
  GuidedInterval cfg_interval = {};

  /// Errors:   InputError that names the key for a sampler of another process, a spacing that does not suit the
  ///           process, eta outside [0, 1] or with a sampler that adds no noise of choice, a cfg_scale that is negative
  ///           or not finite, a cfg_channels that is neither -1 nor at least 1, or a cfg_interval that does not rise
  ///           within [0, 1]
  void validate(const Process& process) const;
};

/// The sampler that a config means for a process: its own, or the default.
const Sampler& sampler_of(const SamplerConfig& config, const Process& process);

/// The guided model at (x, model time), for all samples of a run: out [n, output channels, P], valid until the next
/// call.
using GuidedModel = std::function<const float*(const float* x, double model_time)>;

/// The run of a sampler from noise to data for one batch. It may keep results of earlier steps.
class SamplerRun {
 public:
  virtual ~SamplerRun() = default;
  virtual int64_t num_steps() const = 0;
  virtual bool needs_noise(int64_t /*k*/) const { return false; }  ///< at step k; false: noise may be null
  /// Step k (0 is the noisiest) on x [n, C, P], in place. noise and the x of step 0 are standard normal.
  virtual void step(int64_t k, const GuidedModel& model, const float* noise, float* x) = 0;
};

/// Applies guidance in place to model outputs [2n, output_channels, P]: n conditional outputs, then n for the same
/// samples without their class or by a weaker model, from which guidance leads away.
/// Math:     for the first min(cfg_channels, channels) channels (-1: all `channels`) both halves become
///           uncond + cfg_scale (cond - uncond); all others, the variance among them, stay as the model gave them
/// Errors:   none; `channels` are those of the data, output_channels those of the model
void guided_output(float* model_out, int64_t n, int64_t channels, int64_t output_channels, int64_t pixels,
                   double cfg_scale, int64_t cfg_channels);

/// out [n, output channels, P] = model(x [n, C, P], t [n] as Process::model_time gives it, c [n], or null if the model
/// has no conditions).
using ModelFn = std::function<void(const float* x, const double* t, const Condition* c, int64_t n, float* out)>;
/// Writes to out [C, P] the standard normal noise of a sample at a loop step (0 is the noisiest). Not called for steps
/// that add no noise.
using NoiseFn = std::function<void(int64_t loop_step, int64_t sample, float* out)>;
/// Called after loop step `loop_step` of num_steps with the latents of that moment, laid out as SampleRequest::z.
using ProgressFn = std::function<void(int64_t loop_step, int64_t num_steps, const float* x)>;

struct SampleRequest {
  int64_t n = 0;                          ///< samples wanted
  float* z = nullptr;                     ///< [n, C, P] in: standard normal noise, out: samples
  const Condition* conditions = nullptr;  ///< [n], or null for a model without them
  int64_t null_class = -1;                ///< label that means "no class"; -1: the model learned nothing to drop
  /// For comparison with implementations that do so: z is [2n, C, P], noise is drawn for samples 0..2n-1, and the
  /// unconditional half is stepped with its own outputs and noise, but the model never sees it.
  bool keep_unconditional_half = false;
  /// A weaker model of the same outputs and labels that guidance leads away from, instead of the model without labels.
  /// Source: Karras et al. 2024, "Guiding a Diffusion Model with a Bad Version of Itself" (autoguidance)
  const ModelFn* guide = nullptr;
};

/// The t of every evaluation of the model in sample_loop, in order. A sampler that evaluates twice per step, or twice
/// at the same time, lists both.
/// Errors:   as SamplerConfig::validate
std::vector<double> model_times(const Process& process, const SamplerConfig& config);

/// Runs all steps of the sampler. With guidance the model gets [x, x] with [conditions, the same without_label()] in
/// one call of 2n samples, at every evaluation of a step, and the conditional half is kept; with a guide model and
/// guide get x and the conditions once each.
/// Memory:   model output (twice the samples under guidance), one copy of z for noise, one of [x, x] under guidance,
///           and what the sampler keeps
/// Errors:   as SamplerConfig::validate; InputError if cfg_scale != 1 and there is neither a guide nor both conditions
///           and a null class
/// Threads:  runs in the caller; model and noise may use threads of their own
void sample_loop(const Process& process, const SamplerConfig& config, const Shape& shape, const ModelFn& model,
                 const SampleRequest& request, const NoiseFn& noise, const ProgressFn& progress = {});

}  // namespace ditrain::diffusion
