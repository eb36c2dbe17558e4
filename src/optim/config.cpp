#include "ditrain/optim/config.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ditrain::optim {

double learning_rate(const Config& config, int64_t step, int64_t total_steps) {
  if (step < config.warmup_steps) return config.lr * double(step + 1) / double(config.warmup_steps);
  if (config.schedule == LrSchedule::kConstant) return config.lr;
  if (config.schedule == LrSchedule::kWsd) {
    const double decay_steps = std::max(1.0, config.decay_share * double(total_steps));
    const double left = std::max(0.0, double(total_steps - step)) / decay_steps;
    return config.min_lr + (config.lr - config.min_lr) * std::min(1.0, left);
  }
  const int64_t span = std::max<int64_t>(1, total_steps - config.warmup_steps);
  const double s = std::min(1.0, double(step - config.warmup_steps) / double(span));
  return config.min_lr + 0.5 * (config.lr - config.min_lr) * (1 + std::cos(std::numbers::pi * s));
}

double ema_decay(const EmaConfig& config, int64_t step) {
  return config.warmup ? std::min(config.decay, double(1 + step) / double(10 + step)) : config.decay;
}

double ema_share_of_start(const EmaConfig& config, int64_t updates) {
  if (!config.warmup) return std::pow(config.decay, double(updates));
  double share = 1;
  for (int64_t k = 0; k < updates && share >= 1e-6; ++k) share *= ema_decay(config, k);
  return share;
}

}  // namespace ditrain::optim
