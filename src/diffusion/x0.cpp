// Prediction x0: the clean data.
#include "ditrain/diffusion/registry.hpp"

namespace ditrain::diffusion {

Prediction::Target x0_target(const Level&) { return {.by_x0 = 1, .by_noise = 0}; }
Prediction::Clean x0_clean(const Level&) { return {.by_x_t = 0, .by_out = 1}; }

}  // namespace ditrain::diffusion
