// Element-wise parts of the training losses: f32 arrays, f64 arithmetic and sums, gradients rounded to f32. n and the
// instruction set fix the order of a sum. src/diffusion/losses.cpp uses the terms.
#pragma once
#include <cstdint>

namespace ditrain::kernels {

/// Returns sum_i (out[i] - target[i])^2; dout[i] = weight (out[i] - target[i]), overwritten, if dout is not null.
double square_error(const float* out, const float* target, double weight, float* dout, int64_t n);

/// KL divergence of two normal distributions, element by element, as a function of the model's output:
///   d_i   = mean - true mean              = by_out out[i] + by_x_t x_t[i] + by_x0 x0[i]
///   g_i   = ln(variance / true variance)  = by_v v[i] + at_v_0
///   KL_i  = (g_i - 1 + e^-g_i + d_i^2 e^-g_i / true variance) / 2, in nats
struct NormalKl {
  const float *out, *x_t, *x0;
  const float* v;  ///< null: the variance is fixed, g_i = at_v_0
  double by_out, by_x_t, by_x0;
  double by_v, at_v_0;
  double inverse_true_variance;
};
/// Returns sum_i KL_i; dout[i] = out_weight dKL_i/dd_i and dv[i] = v_weight dKL_i/dg_i, overwritten, each if not null.
/// Numerics: e^-g with an error below 2 ulp (f64); infinity where it is beyond f64
double normal_kl(const NormalKl& kl, double out_weight, float* dout, double v_weight, float* dv, int64_t n);

}  // namespace ditrain::kernels
