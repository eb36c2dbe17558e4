// The capped squared-cosine schedule.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "betas.hpp"

namespace ditrain::diffusion {

namespace {
double cosine_alpha_bar(double time) {
  const double c = std::cos((time + 0.008) / 1.008 * std::numbers::pi / 2);
  return c * c;
}
}  // namespace

std::vector<double> squaredcos_cap_v2_betas(int64_t num_steps) {
  const auto n = static_cast<double>(num_steps);
  std::vector<double> betas(num_steps);
  for (int64_t t = 0; t < num_steps; ++t) {
    const auto step = static_cast<double>(t);
    betas[t] = std::min(1 - cosine_alpha_bar((step + 1) / n) / cosine_alpha_bar(step / n), 0.999);
  }
  return betas;
}

}  // namespace ditrain::diffusion
