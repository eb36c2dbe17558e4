// The reverse process p(x_{t-1} | x_t) that a model's output stands for.
#pragma once
#include <cstdint>

#include "ditrain/diffusion/config.hpp"
#include "ditrain/diffusion/schedule.hpp"

namespace ditrain::diffusion {

/// Outputs of p_mean_variance, each [N, C, P] or null if not wanted.
struct PMeanVariance {
  float *mean = nullptr, *variance = nullptr, *log_variance = nullptr, *pred_x0 = nullptr;
};

/// Mean, variance and predicted clean data of samples begin..end-1.
/// Math:     pred_x0 = out or (x_t - sqrt(1 - A_t) eps) / sqrt(A_t), limited to [-1, 1] if clip_denoised;
///           mean = posterior_mean_coef1 pred_x0 + posterior_mean_coef2 x_t;
///           learned_range: log_variance = f log beta_t + (1 - f) posterior_log_variance_clipped, f = (v + 1) / 2;
///           fixed_large: variance = beta_t (at t = 0: posterior_variance[1]); fixed_small: posterior_variance (at t =
///           0: 0, with posterior_log_variance_clipped[0] as logarithm)
/// Shapes:   x_t [N, C, P]; t [N], steps of `schedule`; model_out [N, rules.output_channels(C), P]
/// Types:    f32, arithmetic f64
void p_mean_variance(const Schedule& schedule, const Rules& rules, const Shape& shape, bool clip_denoised,
                     const float* x_t, const int64_t* t, const float* model_out, const PMeanVariance& result,
                     int64_t begin, int64_t end);

}  // namespace ditrain::diffusion
