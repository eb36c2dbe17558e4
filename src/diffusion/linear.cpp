// The linear schedule.
#include "betas.hpp"

namespace ditrain::diffusion {

std::vector<double> linear_betas(int64_t num_steps) {
  const double scale = 1000.0 / static_cast<double>(num_steps);
  const double first = scale * 0.0001, last = scale * 0.02;
  const double stride = (last - first) / static_cast<double>(num_steps - 1);
  std::vector<double> betas(num_steps);
  for (int64_t t = 0; t < num_steps; ++t) betas[t] = first + static_cast<double>(t) * stride;
  betas.back() = last;
  return betas;
}

}  // namespace ditrain::diffusion
