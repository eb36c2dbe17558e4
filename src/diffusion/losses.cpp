// What is trained on: the mean square error with its weights by time, one term of the variational bound, and the
// objectives of process ddpm that are built on both (Config::loss).
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/kernels/loss.hpp"
#include "parts.hpp"

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

}  // namespace

double mean_square_error(const LossSample& sample, const Prediction::Target& target, double weight, float* dmean) {
  const int64_t n = sample.shape.elements();
  const auto count = static_cast<double>(n);
  const bool is_noise = target.by_x0 == 0 && target.by_noise == 1, is_x0 = target.by_x0 == 1 && target.by_noise == 0;
  if (!is_noise && !is_x0) return mixed_square_error(sample, target, 2 * weight / count, dmean) / count;
  return kernels::square_error(sample.out, is_x0 ? sample.x0 : sample.noise, 2 * weight / count, dmean, n) / count;
}

double no_weight(const Config&, const Level&, const Prediction::Clean&) { return 1; }

// The square error of the predicted clean data weighs min(SNR, gamma), SNR = alpha^2 / sigma^2. Of the model's output
// that is min(SNR, gamma) / SNR (epsilon), min(SNR, gamma) / (SNR + 1) (v), min(SNR, gamma) (x0).
// Source: Hang et al. 2023, section 3.4
double min_snr_weight(const Config& config, const Level& level, const Prediction::Clean& clean) {
  const double snr = 1 / (level.sigma_by_alpha * level.sigma_by_alpha);
  return std::min(snr, config.min_snr_gamma) * clean.by_out * clean.by_out;
}

namespace {

/// Where gradients of one part of the output go; null: not wanted.
struct OutputGradients {
  float *mean = nullptr, *variance = nullptr;
};

OutputGradients output_gradients(const ObjectiveSample& sample) {
  if (sample.at.dout == nullptr) return {};
  const bool learned = sample.process.rules().variance == Variance::kLearnedRange;
  return {.mean = sample.at.dout, .variance = learned ? sample.at.dout + sample.at.shape.elements() : nullptr};
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

// The variational bound. Legend: m, lv are mean and log-variance of p; x is x0.

/// A value with its derivatives by mean and log-variance of p.
struct Term {
  double value, by_mean, by_log_variance;
};

/// The tanh approximation of the standard normal distribution function, and its own derivative.
struct Cdf {
  double value, slope;
};
Cdf approximate_normal_cdf(double z) {
  constexpr double kScale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // sqrt(2 / pi)
  const double th = std::tanh(kScale * (z + 0.044715 * z * z * z));
  return {.value = 0.5 * (1 + th), .slope = 0.5 * (1 - th * th) * kScale * (1 + 3 * 0.044715 * z * z)};
}

/// -ln of the probability of x's bin, of 256 bins of width 2/255 around x; the outermost bins are open.
Term discretised_nll(double x, double m, double lv) {
  constexpr double kHalfBin = 1.0 / 255, kOuter = 0.999, kLeast = 1e-12;
  const double inverse_deviation = std::exp(-0.5 * lv);
  const double z_upper = inverse_deviation * (x - m + kHalfBin), z_lower = inverse_deviation * (x - m - kHalfBin);
  const Cdf upper = x > kOuter ? Cdf{1, 0} : approximate_normal_cdf(z_upper);
  const Cdf lower = x < -kOuter ? Cdf{0, 0} : approximate_normal_cdf(z_lower);
  const double probability = upper.value - lower.value;
  if (probability < kLeast) return {.value = -std::log(kLeast), .by_mean = 0, .by_log_variance = 0};
  // dz/dm = -inverse_deviation, dz/dlv = -z/2
  return {.value = -std::log(probability),
          .by_mean = (upper.slope - lower.slope) * inverse_deviation / probability,
          .by_log_variance = 0.5 * (upper.slope * z_upper - lower.slope * z_lower) / probability};
}

// Weights of the gradients by mean and log-variance of p, as gradients by the model's output.
struct Weights {
  double mean, log_variance;
};

// Step 0, one sample in num_steps: element by element.
double sum_nll(const ObjectiveSample& sample, const ReverseStep& step, const float* v, const Weights& weights,
               const OutputGradients& gradients) {
  double sum = 0;
  for (int64_t i = 0; i < sample.at.shape.elements(); ++i) {
    const double x_t = sample.at.x_t[i];
    const double m = step.mean(step.predict_x0(x_t, sample.at.out[i], false), x_t);
    const Term term = discretised_nll(sample.at.x0[i], m, step.log_variance(v == nullptr ? 0 : v[i]));
    sum += term.value;
    if (gradients.mean != nullptr) gradients.mean[i] = static_cast<float>(weights.mean * term.by_mean);
    if (gradients.variance != nullptr) {
      gradients.variance[i] = static_cast<float>(weights.log_variance * term.by_log_variance);
    }
  }
  return sum;
}

// All others. Both means are linear in out, x_t and x0, and what they have in common is left out of their difference.
double sum_kl(const ObjectiveSample& sample, const ReverseStep& step, const float* v, const Weights& weights,
              const OutputGradients& gradients) {
  const double true_lv = sample.process.schedule().posterior_log_variance_clipped[sample.t];
  const kernels::NormalKl kl{.out = sample.at.out,
                             .x_t = sample.at.x_t,
                             .x0 = sample.at.x0,
                             .v = v,
                             .by_out = step.mean_slope(),
                             .by_x_t = step.mean(step.predict_x0(1, 0, false), 0),
                             .by_x0 = -step.mean(1, 0),
                             .by_v = step.log_variance_slope(),
                             .at_v_0 = step.log_variance(0) - true_lv,
                             .inverse_true_variance = std::exp(-true_lv)};
  return kernels::normal_kl(kl, weights.mean, gradients.mean, weights.log_variance, gradients.variance,
                            sample.at.shape.elements());
}

/// Variational bound in bits per element; its gradients = weight * gradient, overwritten.
double variational_bound(const ObjectiveSample& sample, double weight, const OutputGradients& gradients) {
  const ReverseStep step(sample.process.schedule(), sample.process.rules(), sample.t);
  const int64_t n = sample.at.shape.elements();
  const float* v = sample.process.rules().variance == Variance::kLearnedRange ? sample.at.out + n : nullptr;
  const double bits = 1 / (std::numbers::ln2 * static_cast<double>(n));
  const Weights weights{.mean = weight * bits * step.mean_slope(),
                        .log_variance = weight * bits * step.log_variance_slope()};
  return bits * (sample.t == 0 ? sum_nll : sum_kl)(sample, step, v, weights, gradients);
}

}  // namespace

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

LossTerms kl_loss(const ObjectiveSample& sample) {
  const auto num_steps = static_cast<double>(sample.process.schedule().num_steps());
  const double vb = variational_bound(sample, sample.at.grad_weight * num_steps, output_gradients(sample));
  return {.mse = sample.process.mse(sample.at), .vb = vb, .loss = vb * num_steps};
}

}  // namespace ditrain::diffusion
