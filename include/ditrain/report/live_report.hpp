// The files by which users watch a run: status.json, report.html, and on request event files for TensorBoard and a file
// for Prometheus. They are made from the files of the run folder, at most every few seconds and in a small share of the
// time. A file that cannot be written (disk full) causes one warning, and training continues.
//
//   LiveReport live({.folder = "runs/a", .steps = 1000});
//   for (...) live.step(step, seconds_left);
//   live.end(RunState::kFinished, "all steps are done");
#pragma once
#include <memory>
#include <set>
#include <string>

#include "ditrain/report/event_file.hpp"
#include "ditrain/report/run_files.hpp"
#include "ditrain/report/status.hpp"

namespace ditrain::report {

struct LiveOptions {
  std::string folder;
  int64_t first_step = 0, steps = 0;  ///< event files hold the steps after first_step
  bool tensorboard = false;
  std::string prometheus = {};  ///< a file; empty: none
  std::string build = {};       ///< version and commit of the program
};

/// Decides when costly work is due: at most every `least_s` seconds, and in at most `share` of the time.
class Pace {
 public:
  Pace(double first_s, double least_s, double share) : least_s_(least_s), share_(share), next_s_(first_s) {}
  bool is_due(double now_s) const { return now_s >= next_s_; }
  void took(double now_s, double cost_s) { next_s_ = now_s + std::max(least_s_, cost_s / share_); }

 private:
  double least_s_, share_, next_s_;
};

class LiveReport {
 public:
  explicit LiveReport(LiveOptions options);

  /// Call after each step; returns at once unless something is due. seconds_left: until the last step.
  void step(int64_t step, double seconds_left);
  /// Writes everything a last time.
  void end(RunState state, const std::string& reason);
  std::string page_path() const { return options_.folder + "/report.html"; }

 private:
  template <class F>
  void guarded(const F& write);
  template <class F>
  void when_due(Pace& pace, const F& write);
  void write_status();
  void write_numbers(size_t max_bytes);
  void write_page(size_t max_new_grids);
  void add_events(size_t max_bytes);
  void add_grids();

  LiveOptions options_;
  RunFiles files_;
  Status status_;
  Pace status_pace_, numbers_pace_, page_pace_;
  std::unique_ptr<EventFile> events_;
  std::set<int64_t> grids_in_events_;
  double events_until_s_ = 0;  // wall time of the last event
  bool warned_ = false;
};

}  // namespace ditrain::report
