// The metrics of a run: metrics.jsonl, the progress line, the phase table at the end.
#pragma once
#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/base/clock.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/memory/tiers.hpp"

namespace ditrain::train {

/// The phases of a step, whose seconds are measured on this rank.
enum class Phase {
  kData,
  kPrepare,
  kForward,
  kLoss,
  kBackward,
  kAllreduceExposed,
  kOptimizer,
  kCheckpoint,
  kSample,
  kEval,
  kVerify
};
inline constexpr std::array<const char*, 11> kPhaseNames = {
    "data",      "prepare",    "forward", "loss", "backward", "allreduce_exposed",
    "optimizer", "checkpoint", "sample",  "eval", "verify"};

/// An interval in which a phase ran, in now_s() times.
struct PhaseSpan {
  Phase phase;
  double start_s, end_s;
};

class PhaseTimes {
 public:
  double& operator[](Phase p) { return seconds_[size_t(p)]; }
  double operator[](Phase p) const { return seconds_[size_t(p)]; }
  void add(const PhaseTimes& other);
  const std::array<double, kPhaseNames.size()>& seconds() const { return seconds_; }

 private:
  std::array<double, kPhaseNames.size()> seconds_{};
};

/// Times of phases, and when they ran.
struct PhaseLog {
  PhaseTimes seconds = {};
  std::vector<PhaseSpan> spans = {};
};

/// Adds its own lifetime to a phase.
class PhaseTimer {
 public:
  PhaseTimer(PhaseLog& log, Phase phase) : log_(log), phase_(phase), start_s_(now_s()) {}
  ~PhaseTimer() {
    const double end_s = now_s();
    log_.seconds[phase_] += end_s - start_s_;
    log_.spans.push_back({phase_, start_s_, end_s});
  }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  PhaseLog& log_;
  Phase phase_;
  double start_s_;
};

struct StepMetrics {
  int64_t step = 0;  ///< number of this step, from 1
  double loss = 0, mse = 0, vb = 0, lr = 0, grad_norm = 0;
  double images_per_second = 0, tflops = 0, mfu = 0;
  double cpu_seconds = 0;      ///< user and system time of all ranks
  double allreduce_bytes = 0;  ///< bytes that this rank gave to sums and gathers of gradients, including outer steps
  PhaseTimes seconds;
  double allreduce_hidden_s = 0;  ///< overlaps with the phases
  size_t rss_bytes = 0, fast_peak_bytes = 0, bulk_peak_bytes = 0;
  memory::PerTier<size_t> tier_bytes = {};  ///< bytes that the slow tiers take
  std::map<std::string, double> automem;    ///< copies between tiers in this step; empty: no tensor moves
  int64_t skipped_steps = 0, bad_files = 0;
  std::string non_finite;               ///< see StepResult; empty: all is finite
  std::map<std::string, double> extra;  ///< val_mse, ...; only in steps that measured them
};

/// The numbers of a line of metrics.jsonl, in their order. A new one is a field, a row here, and code that computes it.
struct Metric {
  const char* name;
  double StepMetrics::*value;
};
inline constexpr Metric kMetrics[] = {{"loss", &StepMetrics::loss},
                                      {"mse", &StepMetrics::mse},
                                      {"vb", &StepMetrics::vb},
                                      {"lr", &StepMetrics::lr},
                                      {"grad_norm", &StepMetrics::grad_norm},
                                      {"images_per_second", &StepMetrics::images_per_second},
                                      {"tflops", &StepMetrics::tflops},
                                      {"mfu", &StepMetrics::mfu},
                                      {"cpu_seconds", &StepMetrics::cpu_seconds},
                                      {"allreduce_bytes", &StepMetrics::allreduce_bytes}};

/// One line of metrics.jsonl; numbers that are not finite become null.
std::string to_json_line(const StepMetrics& m);

/// Moves the lines of RUN/metrics.jsonl after `step` to the end of RUN/metrics.discarded.jsonl; a last line that a
/// killed run left half-written counts as one of them. Returns how many were moved.
/// Errors:   RunError
int64_t discard_metrics_after(const std::string& run_folder, int64_t step);

/// Reads a number from the line of a step in metrics.jsonl; none if the line or the number is missing.
/// Errors:   RunError if the file is there but cannot be read
std::optional<double> metric_of_step(const std::string& run_folder, int64_t step, const std::string& name);

/// The means that a progress line shows over the steps since the last line: loss, its parts, gradient norm and rates.
class IntervalMeans {
 public:
  void add(const StepMetrics& m, double step_s);
  /// Returns `last`, the metrics of the last step, with the means in place of its own numbers, and starts a new
  /// interval. Losses and norms of steps that are not finite are left out of the means; if all are, those of the last
  /// step are shown.
  StepMetrics take(const StepMetrics& last);

 private:
  double sum_loss_ = 0, sum_mse_ = 0, sum_vb_ = 0, sum_norm_ = 0, images_ = 0, seconds_ = 0;
  int64_t finite_ = 0;
};

/// Where a run stands after a step.
struct Standing {
  int64_t steps = 0;  ///< of the whole run
  double epoch = 0;   ///< passes over the data so far
  double elapsed_s = 0, left_s = 0;
};

/// "step 120/1000 (12.0 %)  epoch 0.38  loss 0.1234 (mse 0.1230 vb 0.0004)  lr 1.00e-04  |g| 0.21  312.4 img/s
/// MFU 45.1 %  1.2 GiB  25 s, 3 min 12 s left"; the memory is what this rank has in use.
std::string progress_text(const StepMetrics& m, const Standing& standing);

/// Collective: formats a table of phases with min / avg / max over ranks and share of the wall time; empty except on
/// rank 0.
std::string phase_table(const PhaseTimes& total, double wall_s, dist::Communicator& comm);

}  // namespace ditrain::train
