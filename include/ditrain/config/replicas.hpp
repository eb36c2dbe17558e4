// Facts that follow from a config alone: how samples are divided over ranks, and when ranks have equal weights.
#pragma once
#include "ditrain/config/config.hpp"

namespace ditrain::config {

/// Ranks that share a replica: 1 unless parallel.strategy is dp_tp; parallel.tensor_ranks: auto counts as 1.
int tensor_ranks(const Config& config);
/// Number of replicas: world_size / tensor_ranks, which must divide it.
int replicas(const Config& config, int world_size);
/// Samples that one rank processes at once: train.micro_batch, or its whole share of the global batch. `replicas`
/// divides the global batch.
int64_t micro_batch_of(const Config& config, int replicas);

/// Groups of ranks that train by themselves between outer steps (dist.outer); 1: gradients are summed over all ranks.
int outer_groups(const Config& config);
/// Whether ranks hold the same weights after this many steps: always, or after outer steps only.
bool is_outer_step(const Config& config, int64_t steps);

/// Whether ranks may all-gather low-rank gradient factors instead of all-reducing gradients: the engine gathers them,
/// and dist.reproducible does not prescribe the order of sums. With outer steps gradients stay in a node.
bool may_exchange_factors(const Config& config);

}  // namespace ditrain::config
