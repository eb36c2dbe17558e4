// The mean square error, and the objectives built on it.
#include <algorithm>

#include "ditrain/kernels/loss.hpp"
#include "objectives.hpp"

namespace ditrain::diffusion {

OutputGradients output_gradients(const ObjectiveSample& sample) {
  if (sample.dout == nullptr) return {};
  const bool learned = sample.rules.variance == Variance::kLearnedRange;
  return {.mean = sample.dout, .variance = learned ? sample.dout + sample.shape.elements() : nullptr};
}

double mean_square_error(const ObjectiveSample& sample, double weight, float* dmean) {
  const float* target = sample.rules.prediction == Prediction::kX0 ? sample.x0 : sample.noise;
  const int64_t n = sample.shape.elements();
  const auto count = static_cast<double>(n);
  return kernels::square_error(sample.out, target, 2 * weight / count, dmean, n) / count;
}

LossTerms mse_loss(const ObjectiveSample& sample) {
  const OutputGradients gradients = output_gradients(sample);
  if (gradients.variance != nullptr) std::fill_n(gradients.variance, sample.shape.elements(), 0.0f);
  const double mse = mean_square_error(sample, sample.grad_weight, gradients.mean);
  return {.mse = mse, .vb = 0, .loss = mse};
}

LossTerms mse_vb_loss(const ObjectiveSample& sample) {
  if (sample.rules.variance != Variance::kLearnedRange) return mse_loss(sample);
  const OutputGradients gradients = output_gradients(sample);
  const double mse = mean_square_error(sample, sample.grad_weight, gradients.mean);
  const double vb = variational_bound(sample, sample.grad_weight, {.mean = nullptr, .variance = gradients.variance});
  return {.mse = mse, .vb = vb, .loss = mse + vb};
}

}  // namespace ditrain::diffusion
