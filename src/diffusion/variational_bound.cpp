// One term of the variational bound, and the objective that is nothing else.
// Legend: m, lv are mean and log-variance of p; x is x0.
#include <cmath>
#include <numbers>

#include "objectives.hpp"
#include "reverse_step.hpp"

namespace ditrain::diffusion {

namespace {

/// A value with its derivatives by mean and log-variance of p.
struct Term {
  double value, by_mean, by_log_variance;
};

/// KL(N(true_mean, exp(true_lv)) || N(m, exp(lv))) in nats. inverse_true_variance = exp(-true_lv).
Term normal_kl(double true_mean, double true_lv, double inverse_true_variance, double m, double lv) {
  const double ratio = std::exp(true_lv - lv);
  const double inverse_variance = ratio * inverse_true_variance;
  const double d = m - true_mean;
  const double square = d * d * inverse_variance;
  return {.value = 0.5 * (-1 + lv - true_lv + ratio + square),
          .by_mean = d * inverse_variance,
          .by_log_variance = 0.5 * (1 - ratio - square)};
}

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

}  // namespace

double variational_bound(const ObjectiveSample& sample, double weight, const OutputGradients& gradients) {
  const ReverseStep step(sample.schedule, sample.rules, sample.t);
  const int64_t n = sample.shape.elements();
  const bool learned = sample.rules.variance == Variance::kLearnedRange;
  const double true_lv = sample.schedule.posterior_log_variance_clipped[sample.t];
  const double inverse_true_variance = std::exp(-true_lv);
  const double bits = 1 / (std::numbers::ln2 * static_cast<double>(n));
  const double mean_weight = weight * bits * step.mean_slope();
  const double variance_weight = weight * bits * step.log_variance_slope();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double x = sample.x0[i], x_t = sample.x_t[i];
    const double m = step.mean(step.predict_x0(x_t, sample.out[i], false), x_t);
    const double lv = step.log_variance(learned ? sample.out[n + i] : 0);
    const Term term =
        sample.t == 0 ? discretised_nll(x, m, lv) : normal_kl(step.mean(x, x_t), true_lv, inverse_true_variance, m, lv);
    sum += term.value;
    if (gradients.mean != nullptr) gradients.mean[i] = static_cast<float>(mean_weight * term.by_mean);
    if (gradients.variance != nullptr) {
      gradients.variance[i] = static_cast<float>(variance_weight * term.by_log_variance);
    }
  }
  return sum * bits;
}

LossTerms kl_loss(const ObjectiveSample& sample) {
  const auto num_steps = static_cast<double>(sample.schedule.num_steps());
  const double vb = variational_bound(sample, sample.grad_weight * num_steps, output_gradients(sample));
  return {.mse = mean_square_error(sample, 0, nullptr), .vb = vb, .loss = vb * num_steps};
}

}  // namespace ditrain::diffusion
