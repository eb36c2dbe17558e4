// The memory plan: what a rank will take, computed before anything is allocated and held against what the node has.
#pragma once
#include <string>
#include <vector>

#include "ditrain/config/config.hpp"
#include "ditrain/nn/dit.hpp"

namespace ditrain::plan {

struct MemoryItem {
  std::string name, note;
  size_t bytes = 0;
};

struct MemoryPlan {
  std::vector<MemoryItem> items;  ///< of one rank
  std::vector<MemoryItem> kept;   ///< of one rank, one per node of the tape: what it keeps for backward
  int64_t micro_batch = 1;
  size_t total() const;
};

/// What checkpoint.async takes of a rank that keeps so many elements of each moment: no more than it writes.
size_t checkpoint_buffer_bytes(const config::CheckpointConfig& config, int64_t state_elements);

nn::PassOptions pass_options(const config::Config& config);  ///< of a training pass

/// Parameters and states, activations, sampling, loader queue; of a shared replica this rank's part. Allocates nothing
/// of them.
MemoryPlan plan_memory(const config::Config& config, int world_size);

std::string describe(const MemoryPlan& plan);

/// Holds local_size ranks of the plan against the node's limit (RAM, cgroup or rlimit).
/// Errors:   InputError with the plan, the limit and what would fit (a smaller micro-batch, more recomputation,
///           a sharded optimizer, fewer ranks)
void check_memory(const MemoryPlan& plan, const config::Config& config, int world_size, int local_size);

/// A picture of the plan: one bar, one colour per item. Errors: RunError if it cannot be written
void write_memory_svg(const MemoryPlan& plan, const std::string& path);

std::string format_bytes(size_t bytes);  ///< "13.5 GiB"

}  // namespace ditrain::plan
