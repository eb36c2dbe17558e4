// What follows from a config alone: how samples are divided over ranks, and whose results agree.
#pragma once
#include "ditrain/config/config.hpp"

namespace ditrain::config {

/// Ranks that share a replica: 1 unless parallel.strategy is dp_tp; parallel.tensor_ranks: auto counts as 1.
int tensor_ranks(const Config& config);
/// Ranks with samples of their own. world_size is a multiple of tensor_ranks.
int replicas(const Config& config, int world_size);
/// Samples that one rank holds at once: train.micro_batch, or all of its share of the global batch, which `replicas`
/// divides.
int64_t micro_batch_of(const Config& config, int replicas);

/// Whether kernels.gemm gives the same bits with any number of threads: other libraries choose as they go along.
bool products_are_equal_on_all_ranks(const Config& config);
/// Whether ranks may exchange the factors of gradients instead of sums: the engine gathers them, their products have
/// the same bits on all ranks, and dist.reproducible does not want sums of its own.
bool may_exchange_factors(const Config& config);

}  // namespace ditrain::config
