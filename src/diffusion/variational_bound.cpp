// One term of the variational bound, and the objective that is nothing else.
// Legend: m, lv are mean and log-variance of p; x is x0.
#include <cmath>
#include <numbers>

#include "ditrain/kernels/loss.hpp"
#include "objectives.hpp"
#include "reverse_step.hpp"

namespace ditrain::diffusion {

namespace {

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

}  // namespace

double variational_bound(const ObjectiveSample& sample, double weight, const OutputGradients& gradients) {
  const ReverseStep step(sample.process.schedule(), sample.process.rules(), sample.t);
  const int64_t n = sample.at.shape.elements();
  const float* v = sample.process.rules().variance == Variance::kLearnedRange ? sample.at.out + n : nullptr;
  const double bits = 1 / (std::numbers::ln2 * static_cast<double>(n));
  const Weights weights{.mean = weight * bits * step.mean_slope(),
                        .log_variance = weight * bits * step.log_variance_slope()};
  return bits * (sample.t == 0 ? sum_nll : sum_kl)(sample, step, v, weights, gradients);
}

LossTerms kl_loss(const ObjectiveSample& sample) {
  const auto num_steps = static_cast<double>(sample.process.schedule().num_steps());
  const double vb = variational_bound(sample, sample.at.grad_weight * num_steps, output_gradients(sample));
  return {.mse = sample.process.mse(sample.at), .vb = vb, .loss = vb * num_steps};
}

}  // namespace ditrain::diffusion
