// The rows of the schedule table: each gives betas of num_steps steps, in (0, 1] and unchecked.
#pragma once
#include <cstdint>
#include <vector>

namespace ditrain::diffusion {

/// Evenly spaced from 1e-4 to 0.02 at 1000 steps; both ends scaled by 1000 / num_steps. Source: Ho et al. 2020.
std::vector<double> linear_betas(int64_t num_steps);

/// A_t follows cos^2, betas limited to 0.999. Source: Nichol and Dhariwal 2021, eq. 17.
std::vector<double> squaredcos_cap_v2_betas(int64_t num_steps);

}  // namespace ditrain::diffusion
