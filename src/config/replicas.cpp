#include "ditrain/config/replicas.hpp"

#include <algorithm>

namespace ditrain::config {

int tensor_ranks(const Config& config) {
  return config.parallel.strategy == Strategy::kDpTp ? int(std::max<int64_t>(1, config.parallel.tensor_ranks)) : 1;
}

int replicas(const Config& config, int world_size) { return world_size / tensor_ranks(config); }

int64_t micro_batch_of(const Config& config, int replicas) {
  const int64_t share = std::max<int64_t>(1, config.train.global_batch / replicas);
  return config.train.micro_batch > 0 ? std::min(config.train.micro_batch, share) : share;
}

int outer_groups(const Config& config) { return config.dist.outer ? std::max(1, config.dist.outer->groups) : 1; }

bool is_outer_step(const Config& config, int64_t steps) {
  return !config.dist.outer || steps % config.dist.outer->every == 0;
}

bool may_exchange_factors(const Config& config) {
  return config.dist.engine && !config.dist.reproducible && !config.dist.outer;
}

}  // namespace ditrain::config
