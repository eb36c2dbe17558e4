// When a run writes checkpoints, and what follows from their outcome; the link to the best one.
#pragma once
#include <limits>
#include <optional>
#include <string>

#include "ditrain/base/interval.hpp"
#include "run_report.hpp"
#include "starting_point.hpp"
#include "training_state.hpp"

namespace ditrain::train {

class Checkpointing {
 public:
  /// All outlive the object.
  Checkpointing(TrainingState& state, StartingPoint& start, RunReport& report);

  /// By the clock, on rank 0: time for a checkpoint (checkpoint.every_minutes).
  bool is_time() const { return run_.leader() && !state_.saver->is_writing() && since_last_.is_over(); }
  /// Whether the config wants one after this step.
  bool is_due(int64_t step) const;

  /// Collective: begins the checkpoint of the state as it is; one that was begun before is over first. `must_succeed`:
  /// returns when it is whole. Errors: RunError for one that could not be written and has to be
  void begin(bool must_succeed);
  /// Collective, when no rank works on the checkpoint that is being written.
  void advance();
  /// Collective: before a run that fails ends, the checkpoint that is being written is finished.
  void finish_after_failure();
  /// Collective: a run in which ranks differ ends here, before it writes anything.
  void verify();

  /// Collective: of a resumed run, the value that belongs to the checkpoint `best`.
  void restore_best(const std::string& metric);
  /// A value of that metric after this step. Whether it is the best one so far, which wants a checkpoint.
  bool note_value(double value);
  void report_best(const std::string& metric) const;

 private:
  void handle_outcome(const std::optional<checkpoint::SaveOutcome>& outcome, bool must_succeed);

  TrainingState& state_;
  RunContext& run_;
  StartingPoint& start_;
  RunReport& report_;
  Interval since_last_;
  double begin_s_ = 0;          // of the one that is being written
  int64_t verified_step_ = -1;  // the last one after which the replicas were compared
  double best_value_ = std::numeric_limits<double>::infinity();
  int64_t best_step_ = -1;  // of it; its checkpoint is linked as `best`
};

}  // namespace ditrain::train
