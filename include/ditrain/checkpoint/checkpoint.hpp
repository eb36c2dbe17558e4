// Checkpoints of a run as they lie on disk: what state.json says, and how their files are found, checked and read.
// saver.hpp writes them; the folder's mechanics (temporary folder, fsync, rename, `latest`) are
// files/checkpoint_folder.hpp.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "ditrain/autograd/parameters.hpp"
#include "ditrain/checkpoint/checksums.hpp"

namespace ditrain::checkpoint {

/// state.json
struct CheckpointState {
  int64_t step = 0;            ///< optimiser steps done; the data position is step x global_batch
  int64_t optimizer_step = 0;  ///< updates made: step less the skipped ones
  int64_t skipped_steps = 0;   ///< steps without an update because of a non-finite loss or gradient
  int64_t world_size = 1;
  int64_t groups = 1;        ///< of ranks with optimiser state of their own (dist.outer)
  std::string isa, kernels;  ///< what computed it; others may not continue bit for bit
  std::string version;
  std::string config_yaml;  ///< the effective config
  CheckedFiles files = {};  ///< the checksums; empty: written by a version that had none
};

/// Writes FOLDER/state.json, with a checksum of itself.
/// Errors:   RunError
void write_checkpoint_state(const std::string& folder, const CheckpointState& state);

/// Errors:   InputError if state.json is truncated, changed since it was written, lacks a field or has one out of its
///           range; as files::fail_to_read if it cannot be read
CheckpointState read_checkpoint_state(const std::string& folder);

/// Takes what this rank keeps of a whole arena into a state of its store.
using KeepState = std::function<void(const Tensor& whole, const autograd::OptimizerState& state)>;

/// `path` is a checkpoint folder, a folder of checkpoints or a run folder (then its latest complete one is taken).
/// Errors:   InputError if it does not exist
std::string find_checkpoint(const std::string& path);

/// Errors: InputError if this process does not see one of the files of a checkpoint folder, RunError if it may not read
/// one
void expect_readable(const std::string& folder);

/// Holds all files of a checkpoint folder against their checksums.
/// Errors:   InputError that names the file and the place; one for a checkpoint without checksums; as
///           files::fail_to_read for a file that cannot be read
void check_checkpoint(const std::string& folder, const std::vector<int>& pus = {});

/// The newest checkpoint beside `folder` that check_checkpoint finds intact, for advice; "": none.
std::string newest_intact_beside(const std::string& folder);

/// Reads a file with the names and shapes of the public state dict into `arena` (values or ema of the store): of
/// tensors that ranks share, the part that the store has; frozen parameters go to their own place. Works for
/// model.safetensors, ema.safetensors and exports. Where state.json beside the file has checksums of it, what is read
/// is held against them. `pus`: cores that read (parallel::run_jobs).
/// Errors:   InputError that names the file and the tensor: missing, extra, of another shape, not finite, not floating,
///           damaged
void load_weights(const std::string& file, autograd::ParameterStore& parameters, const Tensor& arena,
                  const std::vector<int>& pus = {});

/// A group of ranks among all of the run.
struct GroupPlace {
  int group = 0, groups = 1;
};

/// Weights, EMA and states of a checkpoint folder into a store allocated for training; leaves gradients undefined.
/// `keep`: as this rank keeps them; by default whole. What groups have for themselves is that of `place`; if the
/// checkpoint has another number of groups, each gets the mean over those.
/// Errors:   as load_weights, and then the state is undefined
void load_training_state(const std::string& folder, autograd::ParameterStore& parameters, const KeepState& keep = {},
                         const std::vector<int>& pus = {}, const GroupPlace& place = {});

}  // namespace ditrain::checkpoint
