// The memory plan: what a rank will take, computed before anything is allocated. memory_check.hpp holds it against what
// the node has.
#pragma once
#include <string>
#include <vector>

#include "ditrain/automem/plan.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/nn/dit.hpp"
#include "ditrain/plan/gradient_plan.hpp"
#include "ditrain/plan/inputs.hpp"
#include "ditrain/plan/placement.hpp"
#include "ditrain/platform/limits.hpp"

namespace ditrain::plan {

struct MemoryItem {
  std::string name, note;
  size_t bytes = 0;
};

struct MemoryPlan {
  std::vector<MemoryItem> items = {};  ///< of one rank
  std::vector<MemoryItem> kept = {};   ///< of one rank, one per node of the tape: what it keeps for backward
  size_t total() const;
};

/// What checkpoint.async takes of a rank that keeps so many elements of each moment: no more than it writes.
size_t checkpoint_buffer_bytes(const config::CheckpointConfig& config, int64_t state_elements);

std::string recompute_text(const config::Config& config);    ///< train.recompute, with what a plan settled for auto
nn::PassOptions pass_options(const config::Config& config);  ///< of a training pass

/// Parameters and states, activations, sampling, loader queue; of a shared replica this rank's part. Allocates nothing
/// of them. `model`, `gradients` and `automem` (null: nothing moves): those of a RunPlan, see plan_run.
MemoryPlan plan_memory(const config::Config& config, int world_size, nn::Dit& model, const GradientPlan& gradients,
                       const RankPlace& place, const InputFacts& facts, const automem::Plan* automem);

/// Code, libraries, MPI and packing buffers: resident bytes of a run with a tiny model, rounded up.
inline constexpr size_t kProgramBytes = size_t{160} << 20;

std::string describe(const MemoryPlan& plan);

/// platform::memory_limit of the machine for runs of this config.
platform::MemoryLimit limit_of_node(const config::Config& config, int ranks_on_node = 1);

}  // namespace ditrain::plan
