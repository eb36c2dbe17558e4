// Sampler heun, for process flow: two evaluations per step.
//   y = x + (t' - t) velocity(x, t);   x += (t' - t) (velocity(x, t) + velocity(y, t')) / 2
// The last step ends at t' = 1, where only a model that gives the velocity itself has one (SiT); with another, or with
// clipped clean data, it is a step of Euler's (JiT).
#include "flow_run.hpp"

namespace ditrain::diffusion {

namespace {

class HeunRun final : public FlowRun {
 public:
  using FlowRun::FlowRun;

  void step(int64_t k, const GuidedModel& model, const float* /*noise*/, float* x) override {
    const double dt = time(k + 1) - time(k);
    velocity(time(k), model, x, v_);
    if (k + 1 == num_steps() && !has_final_velocity()) {
      for (int64_t i = 0; i < size(); ++i) x[i] = static_cast<float>(x[i] + dt * v_[static_cast<size_t>(i)]);
      return;
    }
    y_.resize(static_cast<size_t>(size()));
    for (size_t i = 0; i < y_.size(); ++i) y_[i] = static_cast<float>(x[i] + dt * v_[i]);
    velocity(time(k + 1), model, y_.data(), v_at_y_);
    for (size_t i = 0; i < y_.size(); ++i) x[i] = static_cast<float>(x[i] + 0.5 * dt * (double(v_[i]) + v_at_y_[i]));
  }

 private:
  std::vector<float> v_, y_, v_at_y_;
};

}  // namespace

std::unique_ptr<SamplerRun> start_heun(const Process& process, const SamplerConfig& config, const Shape& shape,
                                       int64_t n) {
  return std::make_unique<HeunRun>(process, config, shape, n);
}

}  // namespace ditrain::diffusion
