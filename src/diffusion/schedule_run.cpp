#include "schedule_run.hpp"

#include <algorithm>

namespace ditrain::diffusion {

ScheduleRun::ScheduleRun(const Process& process, const SamplerConfig& config, const Shape& shape, int64_t n, Step step,
                         bool is_noisy)
    : schedule_(respace(as_ddpm(process).schedule(), config.spacing)),
      rules_(as_ddpm(process).rules()),
      settings_{.clip_denoised = config.clip_denoised, .eta = config.eta},
      shape_(shape),
      step_(step),
      is_noisy_(is_noisy),
      t_(static_cast<size_t>(n)) {}

void ScheduleRun::step(int64_t k, const GuidedModel& model, const float* noise, float* x) {
  const int64_t t = num_steps() - 1 - k;
  const float* out = model(x, static_cast<double>(schedule_.timestep_map[t]));
  std::fill(t_.begin(), t_.end(), t);
  step_(schedule_, rules_, shape_, settings_, {.x_t = x, .t = t_.data(), .model_out = out, .noise = noise, .x_prev = x},
        0, static_cast<int64_t>(t_.size()));
}

}  // namespace ditrain::diffusion
