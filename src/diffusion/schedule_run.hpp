// A sampler's run over the steps of a respaced schedule, from its last step to 0, with one evaluation each: samplers
// ddpm and ddim are this with their step.
#pragma once
#include <vector>

#include "ditrain/diffusion/ddpm.hpp"

namespace ditrain::diffusion {

class ScheduleRun final : public SamplerRun {
 public:
  using Step = void (*)(const Schedule&, const Rules&, const Shape&, const StepSettings&, const StepBatch&,
                        int64_t begin, int64_t end);

  ScheduleRun(const Process& process, const SamplerConfig& config, const Shape& shape, int64_t n, Step step,
              bool is_noisy);

  int64_t num_steps() const override { return schedule_.num_steps(); }
  bool needs_noise(int64_t k) const override { return is_noisy_ && k < num_steps() - 1; }
  void step(int64_t k, const GuidedModel& model, const float* noise, float* x) override;

 private:
  const Schedule schedule_;
  const Rules rules_;
  const StepSettings settings_;
  const Shape shape_;
  const Step step_;
  const bool is_noisy_;
  std::vector<int64_t> t_;
};

}  // namespace ditrain::diffusion
