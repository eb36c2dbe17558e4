// The folder of checkpoints of a run: which ones exist, how a new one appears, how old ones go.
//
//   DIR/step_00001000/{model,ema,optimizer}.safetensors + state.json      DIR/latest -> step_00001000
//
// Promise: at every moment, kill -9 and power loss included, a folder named step_* is a whole checkpoint. New ones are
// written into a hidden temporary folder, synced, then renamed; `latest` is a relative symlink replaced by rename.
// Temporary names have a random suffix: a process that outlives its run writes into nothing of the next one.
// A file system without symlinks has no `latest` and no `best`, which is warned of once.
// What is inside the files is not known here (module checkpoint). One process at a time may change DIR.
// Errors:   a RunError names a file or symlink if the system does not say whether it exists; it never counts as
//           missing. A folder of checkpoints that exists but cannot be listed: as fail_to_read.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ditrain::files {

/// The files of a complete checkpoint.
inline constexpr std::array<const char*, 4> kCheckpointFiles = {"model.safetensors", "ema.safetensors",
                                                                "optimizer.safetensors", "state.json"};

/// Power averages of the weights, in checkpoints of runs that keep them.
inline constexpr const char* kAveragesFile = "averages.safetensors";

/// "step_00001000" for 1000 (at least 8 digits).
std::string checkpoint_name(int64_t step);

/// The file that a checkpoint folder lacks; "" if it is complete.
std::string missing_file(const std::string& folder);

/// Writes one checkpoint: fill folder() with the files of kCheckpointFiles, then commit().
/// Errors:   RunError (disk full, ...); the checkpoints that exist stay. commit() of an incomplete folder: LogicFault.
class CheckpointWriter {
 public:
  CheckpointWriter(std::string checkpoints_dir, int64_t step);  ///< creates the folders; step >= 0
  ~CheckpointWriter();                                          ///< removes the temporary folder if not committed
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  const std::string& folder() const { return folder_; }  ///< DIR/.tmp_step_N.SUFFIX, which no other writer has
  /// Syncs the folder (its files have to be synced already), renames it to step_..., points `latest` to it. A
  /// checkpoint of the same step is replaced.
  void commit();

 private:
  std::string dir_;
  std::string name_;
  std::string folder_;
  bool committed_ = false;
};

/// Steps of all complete checkpoints, increasing; empty if `dir` does not exist.
std::vector<int64_t> list_checkpoints(const std::string& dir);

/// How many there are; 0 if that cannot be read: for hints, which end no run.
int64_t count_checkpoints(const std::string& dir);

/// Folders of the checkpoints to resume from, complete or not, the best first: the one that `latest` names if it is in
/// `dir`, then by decreasing step.
std::vector<std::string> checkpoints_to_resume(const std::string& dir);

/// The first complete one of checkpoints_to_resume(), with a warning in the log for each incomplete one before it;
/// nullopt if none is complete.
std::optional<std::string> latest_checkpoint(const std::string& dir);

/// Called when a part of a long operation has ended.
using Progress = std::function<void()>;

/// Removes checkpoints except: the `keep_last` of the highest steps, steps divisible by `keep_every` (0: no such rule),
/// and always the newest, those that `latest` and `best` name, and the one that `in_use` is or lies in. A removal
/// that is killed half way leaves no half checkpoint.
/// Errors:   none for what cannot be removed: it stays, with a warning in the log. LogicFault for negative numbers
void prune_checkpoints(const std::string& dir, int64_t keep_last, int64_t keep_every, const Progress& moved = {},
                       const std::string& in_use = "");

/// Makes the symlink `best` name the complete checkpoint of this step; a file system without symlinks has none.
/// Errors:   RunError
void link_best(const std::string& dir, int64_t step);
/// The step of the complete checkpoint that `best` names; none without such a checkpoint.
std::optional<int64_t> best_checkpoint(const std::string& dir);

/// Moves the checkpoints after `step` aside, complete or not, to discarded_step_*. Returns their new paths.
/// Errors:   RunError
std::vector<std::string> discard_checkpoints_after(const std::string& dir, int64_t step);
/// Removes what discard_checkpoints_after moved aside. What cannot be removed stays, with a warning in the log.
void remove_discarded(const std::string& dir, const Progress& moved = {});

/// Keeps files of a checkpoint in DIR/step_..., also after the checkpoint is removed: as hard links, or as copies if
/// the file system has no hard links. `from` has the files, synced. Files of that step in DIR are replaced.
/// Errors:   RunError
void keep_files(const std::string& from, const std::vector<std::string>& names, const std::string& dir, int64_t step,
                const Progress& moved = {});
/// Steps of all folders in DIR, increasing; empty if it does not exist.
std::vector<int64_t> list_kept(const std::string& dir);

/// Clears what a killed writer or prune left behind. Call at start-up before latest_checkpoint(); only the holder of
/// the run's lock may call it. A complete checkpoint that was moved aside for its replacement, which then never came,
/// gets its name back, and a commit that was killed before it set `latest` is finished.
/// Errors:   RunError
void remove_stale_temporaries(const std::string& dir);

}  // namespace ditrain::files
