// What a model's output can mean: epsilon, x0, v and velocity. Each is a target in training, and its inverse, the clean
// data that an output stands for.
#include "ditrain/diffusion/registry.hpp"

namespace ditrain::diffusion {

using Target = Prediction::Target;
using Clean = Prediction::Clean;

// epsilon: the noise. Source: Ho et al. 2020
Target epsilon_target(const Level&) { return {.by_x0 = 0, .by_noise = 1}; }
Clean epsilon_clean(const Level& level) { return {.by_x_t = level.inverse_alpha, .by_out = -level.sigma_by_alpha}; }

// x0: the clean data.
Target x0_target(const Level&) { return {.by_x0 = 1, .by_noise = 0}; }
Clean x0_clean(const Level&) { return {.by_x_t = 0, .by_out = 1}; }

// v, for alpha^2 + sigma^2 = 1. Source: Salimans and Ho 2022, section 4
Target v_target(const Level& level) { return {.by_x0 = -level.sigma, .by_noise = level.alpha}; }
Clean v_clean(const Level& level) { return {.by_x_t = level.alpha, .by_out = -level.sigma}; }

// velocity: dx_t/dt of the straight line x_t = t x0 + (1 - t) noise, where alpha + sigma = 1.
Target velocity_target(const Level&) { return {.by_x0 = 1, .by_noise = -1}; }
Clean velocity_clean(const Level& level) { return {.by_x_t = 1, .by_out = level.sigma}; }

}  // namespace ditrain::diffusion
