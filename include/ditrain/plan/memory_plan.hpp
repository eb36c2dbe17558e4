// The memory plan says what a rank will take; it is computed before anything is allocated. memory_check.hpp compares it
// with what the node has.
#pragma once
#include <string>
#include <vector>

#include "ditrain/automem/plan.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/nn/model.hpp"
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
  std::vector<MemoryItem> items = {};  ///< memory of one rank
  std::vector<MemoryItem> kept = {};   ///< activations stored for backward by each node of the tape
  size_t total() const;
};

/// Buffer of checkpoint.async on a rank that writes `state_bytes` of weights, EMA and optimiser state: never more.
size_t checkpoint_buffer_bytes(const config::CheckpointConfig& config, size_t state_bytes);

std::string recompute_text(const config::Config& config);    ///< train.recompute, with what a plan settled for auto
nn::PassOptions pass_options(const config::Config& config);  ///< options of a training pass

/// Temporaries of a step: those of the pass, and x_t, noise and gradient of the output of a micro-batch.
size_t temporary_bytes(nn::ModelPass& pass, const nn::ModelConfig& model, int64_t micro_batch);

/// Plans parameters and states, activations, sampling and loader queue (this rank's part of a shared replica) without
/// allocating them. `model`, `gradients` and `automem` (null: nothing moves) are those of a RunPlan, see plan_run.
MemoryPlan plan_memory(const config::Config& config, int world_size, nn::Model& model, const GradientPlan& gradients,
                       const RankPlace& place, const InputFacts& facts, const automem::Plan* automem);

/// Memory of code, libraries, MPI and packing buffers: resident bytes of a run with a tiny model, rounded up.
inline constexpr size_t kProgramBytes = size_t{160} << 20;

std::string describe(const MemoryPlan& plan);

/// The platform::memory_limit of this machine for runs of this config.
platform::MemoryLimit limit_of_node(const config::Config& config, int ranks_on_node = 1);

/// What a run's checkpoints and snapshots take on disk.
struct CheckpointDisk {
  double checkpoint_bytes = 0;  ///< of one
  double kept = 0;              ///< at most at a time, with the one being written
  double snapshot_bytes = 0;    ///< of all snapshots of power averages at the end
  double most_bytes() const { return checkpoint_bytes * kept + snapshot_bytes; }
};
/// model.num_classes: auto counts as kAssumedClasses.
CheckpointDisk checkpoint_disk(const config::Config& config);

}  // namespace ditrain::plan
