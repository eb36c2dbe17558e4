// Prediction velocity: dx_t/dt of the straight line x_t = t x0 + (1 - t) noise, where alpha + sigma = 1.
#include "ditrain/diffusion/registry.hpp"

namespace ditrain::diffusion {

Prediction::Target velocity_target(const Level&) { return {.by_x0 = 1, .by_noise = -1}; }
Prediction::Clean velocity_clean(const Level& level) { return {.by_x_t = 1, .by_out = level.sigma}; }

}  // namespace ditrain::diffusion
