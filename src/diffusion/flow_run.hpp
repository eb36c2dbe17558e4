// What the samplers of process flow share: their times, and the guided velocity of a batch.
#pragma once
#include <vector>

#include "ditrain/diffusion/flow.hpp"

namespace ditrain::diffusion {

class FlowRun : public SamplerRun {
 public:
  FlowRun(const Process& process, const SamplerConfig& config, const Shape& shape, int64_t n)
      : flow_(as_flow(process)),
        clip_(config.clip_denoised),
        times_(flow_.sampling_times(config.spacing)),
        size_(n * shape.elements()) {}

  int64_t num_steps() const override { return static_cast<int64_t>(times_.size()) - 1; }

 protected:
  double time(int64_t k) const { return times_[static_cast<size_t>(k)]; }
  int64_t size() const { return size_; }
  bool has_final_velocity() const { return flow_.has_final_velocity(clip_); }
  void velocity(double t, const GuidedModel& model, const float* x, std::vector<float>& v) const {
    v.resize(static_cast<size_t>(size_));
    flow_.velocity(t, x, model(x, flow_.model_time(t)), clip_, v.data(), size_);
  }

 private:
  const Flow& flow_;
  const bool clip_;
  const std::vector<double> times_;
  const int64_t size_;
};

}  // namespace ditrain::diffusion
