// Where a run starts from: it locks the run folder, and finds the checkpoint to resume from with those to fall back to.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/train/run_folder.hpp"
#include "ditrain/train/train_step.hpp"
#include "run_context.hpp"

namespace ditrain::train {

/// The damage in the checkpoint that `read` reads; "" if it is intact. A read error is not damage, and neither is a
/// tensor of this run that cannot take what is read: an older checkpoint would not fit either.
/// Errors:   RunError for a read error; InputError for a checkpoint that does not fit
template <class F>
std::string damage_of(const F& read) try {
  read();
  return "";
} catch (const files::OpenError& e) {
  throw RunError({.where = "resume", .what = std::string("a checkpoint cannot be read: ") + e.what()});
} catch (const ShapeError& e) {
  throw InputError({.where = "resume", .what = std::string("a checkpoint does not fit this run: ") + e.what()});
} catch (const InputError& e) {
  return e.what();
}

/// The checkpoints that --resume may start from, the best first.
class ResumeCandidates {
 public:
  /// Errors:   InputError for a --resume that names no checkpoint
  explicit ResumeCandidates(const TrainOptions& options);

  /// Returns the first one whose state can be read, and reads its step; "": a new run. Damaged ones before it are
  /// passed over by name. Errors: InputError if none is intact, and if it is of another config than `config` (null:
  /// of any) or of other classes than `class_names` (empty: of any)
  std::string next(const config::Config* config, const std::vector<std::string>& class_names);
  /// Removes the first one. Errors: InputError if it is the only one that was asked for, or the last
  void skip_damaged(const std::string& why);
  int64_t step() const { return step_; }  ///< of what next() returned

 private:
  const TrainOptions& options_;
  std::vector<std::string> folders_;
  int64_t step_ = 0;
};

class StartingPoint {
 public:
  /// Collective. Rank 0 alone decides, so that all ranks start from the same place.
  /// Errors:   InputError for a folder that another run locks or has written, and for a checkpoint that does not fit
  ///           the config
  explicit StartingPoint(RunContext& run);

  const std::string& checkpoint() const { return checkpoint_; }  ///< its folder; "": a new run
  RunFolder* folder() const { return folder_.get(); }            ///< null except on rank 0

  /// On other ranks that write: shares the lock of the folder as soon as the rank sees the folder.
  void join_lock();

  /// Collective: calls load(checkpoint()) until no rank finds damage; a damaged checkpoint is passed over by name.
  /// Afterwards checkpoint() is the one that was loaded.
  /// Errors:   InputError without a checkpoint to fall back to
  void load(const std::function<void(const std::string& checkpoint)>& load);
  /// Collective; call it before anything is written. Errors: InputError if ranks see different files
  void expect_same_on_all_ranks(const Progress& progress, int64_t samples);
  /// Writes config and topology, and moves later checkpoints and metrics than `step` aside.
  void begin(int64_t step, const std::string& topology);

 private:
  void open_folder();
  void expect_own_run() const;

  RunContext& run_;
  std::optional<RunLock> lock_;                 // on rank 0 and others that write
  std::unique_ptr<RunFolder> folder_;           // on rank 0
  std::string checkpoint_;                      // "": a new run
  std::optional<ResumeCandidates> candidates_;  // on rank 0: it, and those to fall back to
};

}  // namespace ditrain::train
