// Mean and variance of the reverse process.
#include "ditrain/diffusion/ddpm.hpp"
#include "reverse_step.hpp"

namespace ditrain::diffusion {

namespace {
void store(float* out, int64_t i, double value) {
  if (out != nullptr) out[i] = static_cast<float>(value);
}
}  // namespace

void p_mean_variance(const Schedule& schedule, const Rules& rules, const Shape& shape, bool clip_denoised,
                     const float* x_t, const int64_t* t, const float* model_out, const PMeanVariance& result,
                     int64_t begin, int64_t end) {
  const int64_t n = shape.elements(), out_stride = rules.output_channels(shape.channels) * shape.pixels;
  for (int64_t sample = begin; sample < end; ++sample) {
    const ReverseStep step(schedule, rules, t[sample]);
    const float* out = model_out + sample * out_stride;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = sample * n + i;
      const double x0 = step.predict_x0(x_t[at], out[i], clip_denoised);
      const double log_variance = step.log_variance(out_stride > n ? out[n + i] : 0);
      store(result.pred_x0, at, x0);
      store(result.mean, at, step.mean(x0, x_t[at]));
      store(result.log_variance, at, log_variance);
      store(result.variance, at, step.variance(log_variance));
    }
  }
}

}  // namespace ditrain::diffusion
