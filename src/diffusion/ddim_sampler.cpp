// Sampler ddim: the implicit step.
#include "reverse_step.hpp"
#include "schedule_run.hpp"

namespace ditrain::diffusion {

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

std::unique_ptr<SamplerRun> start_ddim(const Process& process, const SamplerConfig& config, const Shape& shape,
                                       int64_t n) {
  return std::make_unique<ScheduleRun>(process, config, shape, n, ddim_step, config.eta > 0);
}

}  // namespace ditrain::diffusion
