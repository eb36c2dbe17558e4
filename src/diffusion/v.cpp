// Prediction v, for alpha^2 + sigma^2 = 1. Source: Salimans and Ho 2022, section 4.
#include "ditrain/diffusion/registry.hpp"

namespace ditrain::diffusion {

Prediction::Target v_target(const Level& level) { return {.by_x0 = -level.sigma, .by_noise = level.alpha}; }
Prediction::Clean v_clean(const Level& level) { return {.by_x_t = level.alpha, .by_out = -level.sigma}; }

}  // namespace ditrain::diffusion
