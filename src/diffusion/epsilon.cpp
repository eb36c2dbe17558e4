// Prediction epsilon: the noise. Source: Ho et al. 2020.
#include "ditrain/diffusion/registry.hpp"

namespace ditrain::diffusion {

Prediction::Target epsilon_target(const Level&) { return {.by_x0 = 0, .by_noise = 1}; }
Prediction::Clean epsilon_clean(const Level& level) {
  return {.by_x_t = level.inverse_alpha, .by_out = -level.sigma_by_alpha};
}

}  // namespace ditrain::diffusion
