// The memory plan: how many bytes a rank will take, computed before anything is allocated. memory_check.hpp compares it
// with the memory of the node.
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
  size_t bytes = 0;             ///< a rank's share of what the ranks of its node take
  size_t first_rank_bytes = 0;  ///< of the first rank of a node, if the others take less than it
  std::string full_note() const;
};

struct MemoryPlan {
  std::vector<MemoryItem> items = {};  ///< memory of one rank
  std::vector<MemoryItem> kept = {};   ///< activations stored for backward by each node of the tape
  size_t in_huge_pages = 0;            ///< of the items, in explicit huge pages that are free now
  size_t total() const;
  size_t outside_huge_pages() const;
  MemoryPlan of_first_rank() const;  ///< the plan of the first rank of a node, with what the others do not take
};

/// Bytes of those blocks that get explicit huge pages: one after the other, each wholly or not at all, in whole pages.
size_t bytes_in_explicit_pages(const std::vector<size_t>& blocks, size_t free_bytes);

/// Largest size of the buffer of checkpoint.async on a rank that writes `state_bytes` of weights, EMA and optimiser
/// state.
size_t checkpoint_buffer_bytes(const config::CheckpointConfig& config, size_t state_bytes);

std::string recompute_text(const config::Config& config);    ///< train.recompute, with what a plan settled for auto
nn::PassOptions pass_options(const config::Config& config);  ///< options of a training pass

/// Bytes of the temporaries of a step: those of the pass, and x_t, noise and output gradient of a micro-batch.
size_t temporary_bytes(nn::ModelPass& pass, const nn::ModelConfig& model, int64_t micro_batch);

/// Plans parameters and states (this rank's part of a shared replica), activations, sampling and loader queue without
/// allocating them. `model`, `gradients` and `automem` (null: no tensor moves) are those of a RunPlan, see plan_run.
MemoryPlan plan_memory(const config::Config& config, int world_size, nn::Model& model, const GradientPlan& gradients,
                       const RankPlace& place, const InputFacts& facts, const automem::Plan* automem);

/// Memory of code, libraries and MPI: resident bytes of a run with a tiny model, rounded up.
inline constexpr size_t kProgramBytes = size_t{160} << 20;

std::string describe(const MemoryPlan& plan);

/// What the ranks of this node may take together without others having to give way: the least of its limit and of what
/// was available when the program began. Choices that are made for a user keep to it; a run above it is warned.
size_t usable_bytes(int ranks_on_node);

/// Most bytes that plan.outside_huge_pages() may have where the ranks of a node may take `node_bytes` together. A limit
/// per process has to hold the first rank of the node, too.
size_t rank_limit(const MemoryPlan& plan, int ranks_on_node, size_t node_bytes);

/// Disk space for a run's checkpoints and snapshots.
struct CheckpointDisk {
  double checkpoint_bytes = 0;  ///< of one checkpoint
  double kept = 0;              ///< most checkpoints at a time, including the one being written
  double snapshot_bytes = 0;    ///< of all snapshots of power averages at the end of the run
};
/// model.num_classes: auto counts as kAssumedClasses.
CheckpointDisk checkpoint_disk(const config::Config& config);
/// Bytes that the checkpoints and snapshots take which a run folder still gets after `share_done` of its steps.
double more_disk(const CheckpointDisk& disk, const std::string& run_folder, double share_done);
/// What to tell a user if the disk of a run folder is too small for the checkpoints and snapshots that it still gets
/// (more_disk) when others have taken `bytes_of_others` of what is free now; empty if it is not.
std::string disk_warning(const CheckpointDisk& disk, const std::string& run_folder, double share_done,
                         double bytes_of_others = 0);

}  // namespace ditrain::plan
