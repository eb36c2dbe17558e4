// The rows of the objective table, which process ddpm trains with (see Config::loss), and what they are made of.
#pragma once
#include "ditrain/diffusion/registry.hpp"

namespace ditrain::diffusion {

LossTerms mse_loss(const ObjectiveSample& sample);
LossTerms mse_vb_loss(const ObjectiveSample& sample);
LossTerms kl_loss(const ObjectiveSample& sample);

/// Where gradients of one part of the output go; null: not wanted.
struct OutputGradients {
  float *mean = nullptr, *variance = nullptr;
};
OutputGradients output_gradients(const ObjectiveSample& sample);

/// mean (target - out)^2 over the data's channels; dmean = weight * gradient, overwritten, if not null.
double mean_square_error(const LossSample& sample, const Prediction::Target& target, double weight, float* dmean);

/// Variational bound in bits per element; dmean and dvariance (each may be null) = weight * gradient, overwritten.
double variational_bound(const ObjectiveSample& sample, double weight, const OutputGradients& gradients);

}  // namespace ditrain::diffusion
