// When a run writes checkpoints, and what follows from their outcome; the link to the best one.
#pragma once
#include <limits>
#include <optional>
#include <string>

#include "ditrain/base/interval.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "run_report.hpp"
#include "starting_point.hpp"
#include "training_state.hpp"

namespace ditrain::train {

class Checkpointing {
 public:
  /// All arguments outlive the object. The state is the one that the run starts from. Rank 0 warns if the disk is too
  /// small for what the run will write.
  Checkpointing(TrainingState& state, StartingPoint& start, RunReport& report);

  /// Whether a checkpoint is due by the clock of rank 0 (checkpoint.every_minutes); false elsewhere.
  bool is_time() const { return run_.leader() && !state_.saver->is_writing() && since_last_.is_over(); }
  /// How long the last checkpoint took; before the first one, how long it takes a slow disk.
  double last_s() const { return last_s_; }
  /// Whether the folder of the run holds a checkpoint.
  bool has_any() const { return files::count_checkpoints(run_.checkpoints()) > 0; }
  /// Whether the config wants one after this step.
  bool is_due(int64_t step) const;

  /// Collective: finishes the previous checkpoint, then begins that of the current state, unless that is the previous
  /// one. With `must_succeed` it returns when the checkpoint is whole. Errors: RunError if a checkpoint that must
  /// succeed cannot be written
  void begin(bool must_succeed);
  /// Collective: takes the next step of the checkpoint being written. Call it when no rank works on that.
  void advance();
  /// Collective: returns when the checkpoint that is being written, if any, is whole or has failed.
  void finish();
  /// Collective: finishes the checkpoint that is being written, before a failed run ends.
  void finish_after_failure();
  /// Collective: compares the ranks, if dist.verify_every is set and they were not compared after this step, and ends a
  /// run in which they differ before it writes anything.
  void verify();
  /// Collective: the same for what the run starts from, whatever dist.verify_every is.
  void expect_same_start();

  /// Collective: restores the value of the checkpoint `best` in a resumed run.
  void restore_best(const std::string& metric);
  /// Notes the metric's value after this step. Returns whether it is the best so far and needs a checkpoint that is not
  /// begun yet.
  bool note_value(double value);
  void report_best(const std::string& metric) const;

 private:
  bool is_snapshot(int64_t step) const;
  void handle_outcome(const std::optional<checkpoint::SaveOutcome>& outcome, bool must_succeed);
  void link_best();
  void compare_ranks(int64_t step);

  TrainingState& state_;
  RunContext& run_;
  StartingPoint& start_;
  RunReport& report_;
  Interval since_last_;
  double last_s_ = 0;
  int64_t verified_step_ = -1;                 // the last one after which the replicas were compared
  int64_t begun_step_ = -1, whole_step_ = -1;  // of the last checkpoint that was begun, and that is whole
  struct Best {
    double value = std::numeric_limits<double>::infinity();
    int64_t step = -1;
  } best_, linked_;  // linked: `best` is the checkpoint of that step; the same but while that is written
};

}  // namespace ditrain::train
