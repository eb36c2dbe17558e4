// Parts that several files of this module share: levels, the clean data that an output stands for, the coefficients of
// p(x_{t-1} | x_t) at one t (looked up once per sample; arithmetic by element in f64), and the mean square error.
#pragma once
#include <algorithm>
#include <cmath>

#include "ditrain/diffusion/registry.hpp"

namespace ditrain::diffusion {

/// Fails if the schedule has no step t.
void check_step(const Schedule& schedule, int64_t t);

Level level_at(const Schedule& schedule, int64_t t);

/// The clean data that a model's output stands for, element by element.
class CleanData {
 public:
  explicit CleanData(const Prediction::Clean& clean)
      : clean_(clean), is_output_(clean.by_x_t == 0 && clean.by_out == 1) {}

  double operator()(double x_t, double out, bool clip) const {
    const double x0 = is_output_ ? out : clean_.by_x_t * x_t + clean_.by_out * out;
    return clip ? std::clamp(x0, -1.0, 1.0) : x0;
  }
  double by_out() const { return clean_.by_out; }

 private:
  Prediction::Clean clean_;
  bool is_output_;
};

/// mean (target - out)^2 over the data's channels; dmean = weight * gradient, overwritten, if not null.
double mean_square_error(const LossSample& sample, const Prediction::Target& target, double weight, float* dmean);

class ReverseStep {
 public:
  ReverseStep(const Schedule& schedule, const Rules& rules, int64_t t);

  double predict_x0(double x_t, double out, bool clip) const { return clean_(x_t, out, clip); }
  /// The noise that x_t contains if its clean data is x0.
  double epsilon_of(double x_t, double x0) const { return (sqrt_recip_ * x_t - x0) / sqrt_recipm1_; }
  double mean(double x0, double x_t) const { return coef1_ * x0 + coef2_ * x_t; }
  /// d mean / d out, without clipping.
  double mean_slope() const { return coef1_ * clean_.by_out(); }

  /// `v` is the model's variance output; without effect on fixed variances.
  double log_variance(double v) const {
    return learned_ ? min_log_ + (v + 1) / 2 * (max_log_ - min_log_) : fixed_log_variance_;
  }
  double variance(double log_variance) const { return learned_ ? std::exp(log_variance) : fixed_variance_; }
  /// d log_variance / d v
  double log_variance_slope() const { return learned_ ? (max_log_ - min_log_) / 2 : 0; }

 private:
  CleanData clean_;
  bool learned_;
  double sqrt_recip_, sqrt_recipm1_, coef1_, coef2_;
  double min_log_, max_log_;
  double fixed_variance_, fixed_log_variance_;
};

}  // namespace ditrain::diffusion
