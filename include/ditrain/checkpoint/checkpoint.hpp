// Checkpoints of a run on disk: state.json, and how files are found, checked and read. saver.hpp writes them;
// files/checkpoint_folder.hpp handles the folder (temporary folder, fsync, rename, `latest`).
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
  int64_t optimizer_step = 0;  ///< updates made: step minus skipped_steps
  int64_t skipped_steps = 0;   ///< steps without an update because of a non-finite loss or gradient
  /// Of these the last ones, one after the other; with more than one, older checkpoints stay, which may be better. An
  /// older version: 0.
  int64_t skipped_in_a_row = 0;
  int64_t world_size = 1;
  int64_t groups = 1;   ///< groups of ranks with optimiser state of their own (dist.outer)
  int64_t samples = 0;  ///< of the data; others are seen in another order. 0: unknown, an older version wrote it
  std::vector<std::string> class_names = {};  ///< by label; empty: no names, or an older version wrote it
  std::string isa, kernels;  ///< instruction set and kernels of the run; with others the bits may differ
  std::string version;
  std::string config_yaml;  ///< the effective config
  CheckedFiles files = {};  ///< the checksums; empty: written by an older version without checksums
};

/// Writes FOLDER/state.json, with a checksum of itself.
/// Errors:   RunError
void write_checkpoint_state(const std::string& folder, const CheckpointState& state);

/// Errors:   InputError if state.json is truncated, changed since it was written, lacks a field or has one out of its
///           range; as files::fail_to_read if it cannot be read
CheckpointState read_checkpoint_state(const std::string& folder);

/// The first label that stands for another class, "label 0 was cat, is dog"; "": none does, or one side has no names.
std::string other_class(const std::vector<std::string>& were, const std::vector<std::string>& are);

/// Copies this rank's part of a whole arena into a state of its store.
using CopyOwnPart = std::function<void(const Tensor& whole, const autograd::OptimizerState& state)>;

/// Returns the checkpoint folder for `path`: a checkpoint folder, or a folder of checkpoints or a run folder, of which
/// the latest complete checkpoint is taken.
/// Errors:   InputError if it does not exist
std::string find_checkpoint(const std::string& path);

/// Errors: InputError if this process does not see one of the files of a checkpoint folder, RunError if it may not read
/// one
void expect_readable(const std::string& folder);

/// Compares all files of a checkpoint folder with their checksums.
/// Errors:   InputError that names the file and the place; one for a checkpoint without checksums; as
///           files::fail_to_read for a file that cannot be read
void check_checkpoint(const std::string& folder, const std::vector<int>& pus = {});

/// The newest checkpoint beside `folder` that check_checkpoint finds intact, for advice; "": none.
std::string newest_intact_beside(const std::string& folder);

/// Reads a file with the names and shapes of the public state dict (model.safetensors, ema.safetensors, exports) into
/// `arena` (values or ema of the store). Of tensors that ranks share it reads the store's part; frozen parameters go to
/// their own memory. If state.json beside the file has its checksums, the data is compared with them. `pus`: cores that
/// read (parallel::run_jobs).
/// Errors:   InputError that names the file and the tensor: missing, extra, of another shape, not finite, not floating,
///           damaged
void load_weights(const std::string& file, autograd::ParameterStore& parameters, const Tensor& arena,
                  const std::vector<int>& pus = {});

/// The place of a group of ranks among all groups of the run (dist.outer).
struct GroupPlace {
  int group = 0, groups = 1;
};

/// Loads weights, EMA and states of a checkpoint folder into a store allocated for training; gradients become
/// undefined. `copy_own_part` copies this rank's part of them; by default the rank keeps all. Arrays that exist per
/// group are read for `place`; if the checkpoint has another number of groups, each gets the mean over them.
/// Errors:   as load_weights, and then the state is undefined
void load_training_state(const std::string& folder, autograd::ParameterStore& parameters,
                         const CopyOwnPart& copy_own_part = {}, const std::vector<int>& pus = {},
                         const GroupPlace& place = {});

}  // namespace ditrain::checkpoint
