// Checkpoints of a run: which tensors go into which file, and what state.json says. The folder's mechanics (temporary
// folder, fsync, rename, `latest`) are io/checkpoint_folder.hpp.
#pragma once
#include <functional>
#include <string>

#include "ditrain/autograd/parameters.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/plan/rank_groups.hpp"

namespace ditrain::checkpoint {

/// state.json
struct CheckpointState {
  int64_t step = 0;            ///< optimiser steps done; the data position is step x global_batch
  int64_t optimizer_step = 0;  ///< updates made: step less the skipped ones
  int64_t skipped_steps = 0;   ///< steps without an update because of a non-finite loss or gradient
  int64_t world_size = 1;
  std::string isa, kernels;  ///< what computed it; others may not continue bit for bit
  std::string version;
  std::string config_yaml;  ///< the effective config
};

/// A moment or the EMA of a store, whole, where ranks may keep a part each; valid until the next call. Collective then.
using WholeState = std::function<const Tensor&(const Tensor& state)>;
/// Takes what this rank keeps of a whole moment or EMA into that of its store.
using KeepState = std::function<void(const Tensor& whole, const Tensor& state)>;

/// Writes DIR/step_NNNNNNNN with model, ema and optimizer .safetensors and state.json, then moves `latest` and prunes.
/// The first rank of the run does it; where it shares its replica with a group, the others of that group call
/// help_save_checkpoint, so that files hold full tensors; with a `whole` that is collective, all other ranks call
/// accompany_checkpoint meanwhile. Not both.
/// Returns the folder. Errors: RunError (disk full, ...); the last good checkpoint and `latest` stay as they were
std::string save_checkpoint(const std::string& checkpoints_dir, const CheckpointState& state,
                            autograd::ParameterStore& parameters, const config::CheckpointConfig& config,
                            plan::TensorGroup* group = nullptr, const WholeState& whole = {});
void help_save_checkpoint(plan::TensorGroup& group, autograd::ParameterStore& parameters);
void accompany_checkpoint(const autograd::ParameterStore& parameters, const WholeState& whole);

/// `path` is a checkpoint folder, a folder of checkpoints or a run folder (then its latest complete one is taken).
/// Errors:   InputError if there is none
std::string find_checkpoint(const std::string& path);

/// Errors:   InputError if state.json is missing, truncated or lacks a field
CheckpointState read_checkpoint_state(const std::string& folder);

/// Reads a file with the names and shapes of the public state dict into `arena` (values or ema of the store): of
/// tensors that ranks share, the part that the store has; frozen parameters go to their own place. Works for
/// model.safetensors, ema.safetensors and exports.
/// Errors:   InputError that names the file and the tensor: missing, extra, of another shape, not finite, not floating
void load_weights(const std::string& file, autograd::ParameterStore& parameters, const Tensor& arena);

/// Weights, EMA and moments of a checkpoint folder into a store allocated for training; leaves gradients undefined.
/// `keep`: as this rank keeps them; by default whole.
void load_training_state(const std::string& folder, autograd::ParameterStore& parameters, const KeepState& keep = {});

}  // namespace ditrain::checkpoint
