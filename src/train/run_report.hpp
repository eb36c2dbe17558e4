// What a run tells about itself: the start report, metrics and progress of steps, and the summary at its end.
#pragma once
#include <array>
#include <string>

#include "ditrain/dataset/dataset.hpp"
#include "ditrain/report/live_report.hpp"
#include "ditrain/train/heartbeat.hpp"
#include "ditrain/train/metrics.hpp"
#include "ditrain/train/run_folder.hpp"
#include "ditrain/train/trace.hpp"
#include "training_state.hpp"

namespace ditrain::train {

class RunReport {
 public:
  explicit RunReport(RunContext& run);

  /// Collective: reports machine, plan and data, and measures the peak that steps are compared with.
  void tell_start(const dataset::Dataset& data, const std::string& resumed);
  /// Collective: reports the notes of all ranks, each once. Call after allocation and pinning, when all fallbacks have
  /// happened. Errors: InputError with --strict and any note
  void tell_fallbacks();
  const std::string& topology() const { return topology_; }  ///< the content of topology.txt, on rank 0

  /// Begins to time steps. `folder` is null except on rank 0.
  void begin_loop(TrainingState& state, RunFolder* folder);
  /// The metrics of a step that began at start_s, after `waited` for its data.
  StepMetrics metrics_of(const StepResult& result, const PhaseLog& waited, double start_s);
  /// Collective: measures the peak again after a step has beaten it, which shows that it was measured too low.
  void measure_peak();
  bool beats_peak() const;
  /// Collective: writes the step's line of metrics, and prints a progress line if it is due. Time between steps since
  /// the last line counts for it.
  void tell_step(StepMetrics& metrics, bool last);
  /// Writes the line alone, on rank 0. Not collective: for a step that an error ends, which other ranks may not have.
  void write_step(StepMetrics& metrics);
  double recent_step_s() const { return recent_step_s_; }
  /// The same, and before there is one what a step takes at least: its multiply-adds at the peak of all ranks.
  double expected_step_s() const;

  /// Collective: reports times, loads and advice.
  void tell_end(const std::vector<int64_t>& bad_samples);
  void write_trace();
  /// Status and report of a run that ends with this exit code, and of one that an error ends, also before its loop.
  void tell_outcome(int exit_code);
  void tell_failure(const std::string& why);

  PhaseLog off_step;  ///< between steps, since the last line of metrics: samples, checkpoints, comparisons
  Heartbeat heartbeat;

 private:
  void open_live(int64_t first_step);
  void watch_layers();
  void add_automem(StepMetrics& metrics);
  double left_s(int64_t step) const;
  void tell_pages();
  void tell_sums();
  void tell_results(bool done);
  [[noreturn]] void refuse_fallbacks(const std::string& notes) const;

  RunContext& run_;
  TrainingState* state_ = nullptr;  // of the loop
  RunFolder* folder_ = nullptr;
  std::optional<report::LiveReport> live_;  // from the loop on, on rank 0
  bool told_failure_ = false;
  Trace trace_;
  std::string topology_;
  const double flop_per_image_;
  double peak_flops_ = 0;   // of all ranks together
  double last_mfu_ = 0;     // of this rank
  IntervalMeans interval_;  // since the last progress line
  int64_t samples_of_data_ = 1;
  double loop_start_s_ = 0, recent_step_s_ = 0, steps_s_ = 0, hidden_s_ = 0;
  int64_t first_step_ = 0;  // of the loop
  PhaseTimes total_;
  bool told_pages_ = false;
  automem::ResidencyTotals moved_;                      // until the last line of metrics
  memory::PerTier<std::array<double, 2>> copied_ = {};  // bytes in each direction, likewise
};

}  // namespace ditrain::train
