// The memory plan: what a rank will take, computed before anything is allocated and held against what the node has.
#pragma once
#include <string>
#include <vector>

#include "ditrain/dist/shards.hpp"
#include "ditrain/nn/dit.hpp"
#include "ditrain/train/adaln_factors.hpp"
#include "ditrain/train/config.hpp"

namespace ditrain::train {

struct MemoryItem {
  std::string name, note;
  size_t bytes = 0;
};

struct MemoryPlan {
  std::vector<MemoryItem> items;  ///< of one rank
  std::vector<MemoryItem> kept;   ///< of one rank, one a node of the tape: what it keeps for backward
  int64_t micro_batch = 1;
  size_t total() const;
};

DType precision_of(const Config& config);  ///< train.precision
/// Of a training pass; factors, if given, must outlive it.
nn::PassOptions pass_options(const Config& config, const AdalnFactors* factors = nullptr);

/// Samples that one rank holds at once: train.micro_batch, or all of its share of the global batch, which so many
/// replicas divide.
int64_t micro_batch_of(const Config& config, int replicas);

/// The buckets in which gradients travel: those of the factors, and dist.bucket_mib each; at least 1024 elements.
dist::BucketGrid gradient_buckets(const Config& config, int64_t arena_elements, const AdalnFactors& factors);

/// Parameters and states, activations, sampling, loader queue; of a shared replica this rank's part. Allocates nothing
/// of them.
MemoryPlan plan_memory(const Config& config, int world_size);

std::string describe(const MemoryPlan& plan);

/// Holds local_size ranks of the plan against the node's limit (RAM, cgroup or rlimit).
/// Errors:   InputError with the plan, the limit and what would fit (a smaller micro-batch, more recomputation,
///           a sharded optimizer, fewer ranks)
void check_memory(const MemoryPlan& plan, const Config& config, int world_size, int local_size);

/// A picture of the plan: one bar, one colour an item. Errors: RunError if it cannot be written
void write_memory_svg(const MemoryPlan& plan, const std::string& path);

std::string format_bytes(size_t bytes);  ///< "13.5 GiB"

}  // namespace ditrain::train
