// The forward process and the training objectives, for a range of the samples of a batch: callers cut a batch over
// workers by samples, and no result depends on the cut. Adding an objective: one file, one row in registry.cpp.
#pragma once
#include <cstdint>

#include "ditrain/diffusion/config.hpp"
#include "ditrain/diffusion/schedule.hpp"

namespace ditrain::diffusion {

/// Noises clean data.
/// Math:     x_t = sqrt(A_t) x0 + sqrt(1 - A_t) noise
/// Shapes:   x0, noise, x_t [N, elements_per_sample]; t [N], steps of `schedule`; samples begin..end-1 are written
/// Types:    f32, factors rounded to f32. x_t may alias x0 or noise
void q_sample(const Schedule& schedule, const float* x0, const float* noise, const int64_t* t, float* x_t,
              int64_t elements_per_sample, int64_t begin, int64_t end);

/// The mean of q(x_{t-1} | x_t, x0); its log-variance is schedule.posterior_log_variance_clipped[t].
/// Math:     mean = posterior_mean_coef1[t] x0 + posterior_mean_coef2[t] x_t;  shapes as in q_sample
void q_posterior_mean(const Schedule& schedule, const float* x0, const float* x_t, const int64_t* t, float* mean,
                      int64_t elements_per_sample, int64_t begin, int64_t end);

/// Of one sample. mse is always measured; vb (bits per element) is 0 where the objective has no such term.
struct LossTerms {
  double mse = 0, vb = 0, loss = 0;
};

/// A batch to be judged; all arrays start at sample 0 of the batch.
struct LossBatch {
  const float* x0 = nullptr;         ///< [N, C, P] clean data
  const float* x_t = nullptr;        ///< [N, C, P] what the model saw
  const float* noise = nullptr;      ///< [N, C, P] what x_t was made with
  const int64_t* t = nullptr;        ///< [N] steps of the schedule
  const float* model_out = nullptr;  ///< [N, rules.output_channels(C), P]: mean channels, then variance channels
};

/// Loss of samples begin..end-1 and its gradient by the model's output.
/// Math:     mse = mean (target - out)^2, target = noise or x0 by rules.prediction;
///           vb = mean KL(q(x_{t-1} | x_t, x0) || p(x_{t-1} | x_t)) / ln 2 for t > 0, and for t = 0 the negative
///           log-likelihood in bits of x0 under p discretised to 256 levels in [-1, 1], with a tanh approximation of
///           the normal distribution function and probabilities below 1e-12 set to 1e-12 (no gradient there);
///           loss by rules.objective, see Config::loss
/// Grads:    dout [N, output channels, P] = grad_weight * d loss / d model_out, overwritten; null: no gradient.
///           grad_weight = 1 / global_batch gives the gradient of the mean loss
/// Types:    f32 arrays; arithmetic and the sums over a sample f64
/// Source:   Ho et al. 2020, section 3.3; Nichol and Dhariwal 2021, section 3.1
void training_loss(const Schedule& schedule, const Rules& rules, const Shape& shape, const LossBatch& batch,
                   double grad_weight, float* dout, LossTerms* terms, int64_t begin, int64_t end);

}  // namespace ditrain::diffusion
