// The loop of a run: its steps, what happens between them at intervals, and when it stops.
#pragma once

#include "checkpointing.hpp"
#include "ditrain/dataset/loader.hpp"
#include "ditrain/eval/training_fid.hpp"
#include "ditrain/train/evaluation.hpp"

namespace ditrain::train {

class TrainLoop {
 public:
  /// All outlive the object. `validation` has the images of the validation loss. `fid` is that of eval.fid_every_steps;
  /// null without one.
  TrainLoop(TrainingState& state, const dataset::Dataset& data, const dataset::Dataset& validation,
            eval::TrainingFid* fid, StartingPoint& start, Checkpointing& checkpointing, RunReport& report);

  /// Collective: runs steps until train.steps, or a request to stop. Returns kExitDone or kExitStoppedEarly.
  /// Errors:   RunError for a loss or gradient that is not finite (train.on_non_finite: stop; skip: in 100 steps one
  ///           after the other), and for a last checkpoint that cannot be written
  int run();

 private:
  StepMetrics step();
  void encode(dataset::Batch& batch);
  StepFacts own_facts(int64_t number, double evaluation_s);
  double take_cpu_s();
  void handle_non_finite(StepMetrics& metrics);
  bool is_due(int64_t every, int64_t number) const;
  double expected_evaluation_s(int64_t number) const;
  bool evaluates_after(int64_t number) const;
  void evaluate(StepMetrics& metrics, bool last);
  bool are_alike() const;
  void save_if_wanted(bool must_succeed);
  void agree_again();
  double rank_timeout_s() const;

  TrainingState& state_;
  RunContext& run_;
  const config::Config& config_;
  const dataset::Dataset &data_, &validation_;
  eval::TrainingFid* fid_;
  StartingPoint& start_;
  Checkpointing& checkpointing_;
  RunReport& report_;
  dataset::Loader loader_;
  StepFacts agreed_;  // by all ranks in the last step
  // Requests that wait for the next outer step, if there are outer steps; checkpoints also for a step with an update.
  bool stop_wanted_ = false, checkpoint_wanted_ = false;
  struct {
    double samples_s = 0, validation_s = 0, distance_s = 0;
  } took_;  // the last time
  // CPU time of this process when it was last looked at, and what has come together since it was told.
  double cpu_mark_s_ = 0, cpu_s_ = 0;
};

}  // namespace ditrain::train
