// Loss weight min_snr: the square error of the predicted clean data weighs min(SNR, gamma), SNR = alpha^2 / sigma^2. Of
// the model's output that is min(SNR, gamma) / SNR (epsilon), min(SNR, gamma) / (SNR + 1) (v), min(SNR, gamma) (x0).
// Source: Hang et al. 2023, section 3.4
#include <algorithm>

#include "ditrain/diffusion/registry.hpp"

namespace ditrain::diffusion {

double min_snr_weight(const Config& config, const Level& level, const Prediction::Clean& clean) {
  const double snr = 1 / (level.sigma_by_alpha * level.sigma_by_alpha);
  return std::min(snr, config.min_snr_gamma) * clean.by_out * clean.by_out;
}

}  // namespace ditrain::diffusion
