// The mean square error, and the objectives built on it.
#include <algorithm>
#include <array>

#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/kernels/loss.hpp"
#include "objectives.hpp"
#include "reverse_step.hpp"

namespace ditrain::diffusion {

namespace {

// A target that is neither of the two arrays is made piece by piece, in f32.
double mixed_square_error(const LossSample& sample, const Prediction::Target& target, double weight, float* dmean) {
  constexpr int64_t kPiece = 1024;
  std::array<float, kPiece> wanted;
  const auto by_x0 = static_cast<float>(target.by_x0), by_noise = static_cast<float>(target.by_noise);
  double sum = 0;
  for (int64_t i = 0; i < sample.shape.elements(); i += kPiece) {
    const int64_t n = std::min(kPiece, sample.shape.elements() - i);
    kernels::scale_add(by_x0, sample.x0 + i, by_noise, sample.noise + i, wanted.data(), n);
    sum += kernels::square_error(sample.out + i, wanted.data(), weight, dmean == nullptr ? nullptr : dmean + i, n);
  }
  return sum;
}

struct SquareError {
  double mean, weight;
};

// The square error of the sample's prediction, and its weight at that step.
SquareError square_error(const ObjectiveSample& sample, float* dmean) {
  const Level level = level_at(sample.process.schedule(), sample.t);
  const Prediction& prediction = *sample.process.rules().prediction;
  const Config& config = sample.process.config();
  const double weight = config.loss_weight->at(config, level, prediction.clean(level));
  return {mean_square_error(sample.at, prediction.target(level), sample.at.grad_weight * weight, dmean), weight};
}

}  // namespace

OutputGradients output_gradients(const ObjectiveSample& sample) {
  if (sample.at.dout == nullptr) return {};
  const bool learned = sample.process.rules().variance == Variance::kLearnedRange;
  return {.mean = sample.at.dout, .variance = learned ? sample.at.dout + sample.at.shape.elements() : nullptr};
}

double mean_square_error(const LossSample& sample, const Prediction::Target& target, double weight, float* dmean) {
  const int64_t n = sample.shape.elements();
  const auto count = static_cast<double>(n);
  const bool is_noise = target.by_x0 == 0 && target.by_noise == 1, is_x0 = target.by_x0 == 1 && target.by_noise == 0;
  if (!is_noise && !is_x0) return mixed_square_error(sample, target, 2 * weight / count, dmean) / count;
  return kernels::square_error(sample.out, is_x0 ? sample.x0 : sample.noise, 2 * weight / count, dmean, n) / count;
}

double no_weight(const Config&, const Level&, const Prediction::Clean&) { return 1; }

LossTerms mse_loss(const ObjectiveSample& sample) {
  const OutputGradients gradients = output_gradients(sample);
  if (gradients.variance != nullptr) std::fill_n(gradients.variance, sample.at.shape.elements(), 0.0f);
  const SquareError mse = square_error(sample, gradients.mean);
  return {.mse = mse.mean, .vb = 0, .loss = mse.weight * mse.mean};
}

LossTerms mse_vb_loss(const ObjectiveSample& sample) {
  if (sample.process.rules().variance != Variance::kLearnedRange) return mse_loss(sample);
  const OutputGradients gradients = output_gradients(sample);
  const SquareError mse = square_error(sample, gradients.mean);
  const double vb = variational_bound(sample, sample.at.grad_weight, {.mean = nullptr, .variance = gradients.variance});
  return {.mse = mse.mean, .vb = vb, .loss = mse.weight * mse.mean + vb};
}

}  // namespace ditrain::diffusion
