// The samplers of process flow.
//   euler: x += (t' - t) velocity(x, t)
//   heun:  y = x + (t' - t) velocity(x, t);   x += (t' - t) (velocity(x, t) + velocity(y, t')) / 2
// Both start from noise_scale times the noise that they are given.
// The last step of heun ends at t' = 1, where only a model that gives the velocity itself has one (SiT); with another,
// or with clipped clean data, it is a step of euler (JiT).
#include <vector>

#include "ditrain/diffusion/flow.hpp"

namespace ditrain::diffusion {

namespace {

class FlowRun final : public SamplerRun {
 public:
  FlowRun(const Process& process, const SamplerConfig& config, const Shape& shape, int64_t n, bool is_heun)
      : flow_(as_flow(process)),
        clip_(config.clip_denoised),
        is_heun_(is_heun),
        times_(flow_.sampling_times(config.spacing)),
        v_(static_cast<size_t>(n * shape.elements())),
        y_(is_heun ? v_.size() : 0),
        v_at_y_(y_.size()) {}

  int64_t num_steps() const override { return static_cast<int64_t>(times_.size()) - 1; }

  void step(int64_t k, const GuidedModel& model, const float* /*noise*/, float* x) override {
    const double scale = flow_.config().noise_scale;
    for (size_t i = 0; k == 0 && scale != 1 && i < v_.size(); ++i) x[i] = static_cast<float>(scale * x[i]);
    const double t = times_[static_cast<size_t>(k)], next = times_[static_cast<size_t>(k) + 1], dt = next - t;
    const bool corrects = is_heun_ && (k + 1 < num_steps() || flow_.has_final_velocity(clip_));
    velocity(t, model, x, v_);
    float* y = corrects ? y_.data() : x;
    for (size_t i = 0; i < v_.size(); ++i) y[i] = static_cast<float>(x[i] + dt * v_[i]);
    if (!corrects) return;
    velocity(next, model, y, v_at_y_);
    for (size_t i = 0; i < v_.size(); ++i) x[i] = static_cast<float>(x[i] + 0.5 * dt * (double(v_[i]) + v_at_y_[i]));
  }

 private:
  void velocity(double t, const GuidedModel& model, const float* x, std::vector<float>& v) const {
    flow_.velocity(t, x, model(x, flow_.model_time(t)), clip_, v.data(), static_cast<int64_t>(v.size()));
  }

  const Flow& flow_;
  const bool clip_, is_heun_;
  const std::vector<double> times_;
  std::vector<float> v_, y_, v_at_y_;
};

}  // namespace

std::unique_ptr<SamplerRun> start_euler(const Process& process, const SamplerConfig& config, const Shape& shape,
                                        int64_t n) {
  return std::make_unique<FlowRun>(process, config, shape, n, /*is_heun=*/false);
}

std::unique_ptr<SamplerRun> start_heun(const Process& process, const SamplerConfig& config, const Shape& shape,
                                       int64_t n) {
  return std::make_unique<FlowRun>(process, config, shape, n, /*is_heun=*/true);
}

}  // namespace ditrain::diffusion
