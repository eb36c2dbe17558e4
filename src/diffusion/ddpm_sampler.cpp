// Sampler ddpm: the ancestral step.
#include "reverse_step.hpp"
#include "schedule_run.hpp"

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

std::unique_ptr<SamplerRun> start_ddpm(const Process& process, const SamplerConfig& config, const Shape& shape,
                                       int64_t n) {
  return std::make_unique<ScheduleRun>(process, config, shape, n, ddpm_step, /*is_noisy=*/true);
}

}  // namespace ditrain::diffusion
