// Sampler euler, for process flow: x += (t' - t) velocity(x, t).
#include "flow_run.hpp"

namespace ditrain::diffusion {

namespace {

class EulerRun final : public FlowRun {
 public:
  using FlowRun::FlowRun;

  void step(int64_t k, const GuidedModel& model, const float* /*noise*/, float* x) override {
    const double dt = time(k + 1) - time(k);
    velocity(time(k), model, x, v_);
    for (int64_t i = 0; i < size(); ++i) x[i] = static_cast<float>(x[i] + dt * v_[static_cast<size_t>(i)]);
  }

 private:
  std::vector<float> v_;
};

}  // namespace

std::unique_ptr<SamplerRun> start_euler(const Process& process, const SamplerConfig& config, const Shape& shape,
                                        int64_t n) {
  return std::make_unique<EulerRun>(process, config, shape, n);
}

}  // namespace ditrain::diffusion
