// Times a piece of work so that the number can be trusted: peak loops before and after, rivals in alternation, medians.
//
// Problem:      clocks and neighbours change the speed of a machine by 5 % and more within seconds, which is as much as
//               a kernel gains.
// Difficulties: a library's idle threads spin on for a while and slow down what runs next; the first call pays for
//               page faults and cold caches.
// Abstractions: Harness (team, peaks, `measure`), Work (what to call and what limits it), Effort (how long).
//
//   Harness harness({.threads = 2});
//   harness.add(harness.measure({.name = "gelu", .call = f, .bytes = 8e6, .limit = loop}));
//   std::puts(describe(harness.report()).c_str());
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/dtype.hpp"
#include "ditrain/bench/report.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/ops/context.hpp"
#include "ditrain/plan/placement.hpp"

namespace ditrain::bench {

/// How long to measure.
struct Effort {
  int64_t repeats = 5;
  double repeat_s = 0.02;     ///< a repeat is as many calls as take this long, at least one
  double peak_s = 0.1;        ///< of one peak loop
  int max_attempts = 5;       ///< at a row whose drift is above kMaxDrift
  double patience_s = 60;     ///< no further attempt at a row that has taken longer
  double max_share = 1.02;    ///< more cannot be: the peak was not measured right
  double settle_s = 0.05;     ///< pause after a rival, until its threads sleep (OpenBLAS' spin for some 25 ms)
  bool cold_arrays = true;    ///< arrays beyond the last cache where a bench is about memory; false: some 100 KB
  double (*clock)() = now_s;  ///< by which calls are timed, in seconds; tests have one of their own

  /// The shortest run that still calls everything: for tests.
  static Effort quick();
};

/// A library that does the same work.
struct Rival {
  std::string name;
  std::function<void()> call;
};

struct Work {
  std::string name;
  DType dtype = DType::kF32;
  std::function<void()> call = {};
  double flop = 0;                   ///< of a call, if arithmetic limits it: by the peak of `dtype`
  double bytes = 0;                  ///< that a call moves, if memory limits it
  std::function<void()> limit = {};  ///< a call of the loop that moves the same bytes
  std::vector<Rival> rivals = {};
  std::vector<Field> details = {};
  bool once = false;  ///< of work that takes minutes: a single call, whatever the drift
};

class Harness {
 public:
  /// threads 0: all cores that this process may use; clusters 0: as parallel.clusters: auto. With `ranks` (collective
  /// then) those of a node whose masks overlap share its cores.
  /// Errors:   InputError for more clusters than threads
  explicit Harness(int64_t threads, const Effort& effort = {}, int64_t clusters = 0,
                   dist::Communicator* ranks = nullptr);

  ops::Context& ctx() { return ctx_; }
  const Effort& effort() const { return effort_; }
  const plan::Placement& placement() const { return placement_; }
  int num_threads() const { return placement_.threads; }

  /// Section `kernels` of a config for the rows that follow; at first that of the defaults, but without a tuning file:
  /// a damaged one must not keep a new one from being written.
  void apply(const config::Config& config);
  const std::string& products() const { return products_; }  ///< what computes the matrix products, with which blocks

  /// One row: our work and its limiting loop in turn, then our work and the rivals in turn.
  /// share     flop / median / the run's highest FMA peak (that of f32 where the CPU has no bf16 product), so far: rows
  ///           that were added are rated again when a peak is higher; or the limiting loop's best time / our median: a
  ///           limit is a maximum
  /// peers     median over repeats of theirs / ours
  /// A row whose drift is above kMaxDrift, or whose share is above max_share, is measured again; after max_attempts the
  /// attempt with the least drift counts, and a peak that it exceeds is measured again.
  Row measure(const Work& work);

  void add(Row row) {
    rate(row);
    if (on_row) on_row(row);
    report_.rows.push_back(std::move(row));
  }
  std::function<void(const Row&)> on_row =
      {};  ///< called with every row that is added: long benches show that they live
  void note(std::string line) { report_.notes.push_back(std::move(line)); }
  void note(const std::vector<std::string>& lines) {
    report_.notes.insert(report_.notes.end(), lines.begin(), lines.end());
  }
  /// All rows so far, with the highest peaks measured.
  const Report& report();
  /// Errors:   RunError that names the rows whose share is above max_share: what limits them cannot be right
  void check_shares() const;

  /// Bytes of an array that no cache holds: eight times the last one, at least 64 MiB. See Effort::cold_arrays.
  size_t cold_bytes() const;
  /// One pass of stream_pass on the team over arrays of n elements.
  void stream(const kernels::StreamMix& mix, const std::vector<float*>& arrays, int64_t n);

 private:
  struct Peaks {
    double f32 = 0, bf16 = 0;  // GFLOP/s
    double of(const std::string& dtype) const { return dtype == "bf16" && bf16 > 0 ? bf16 : f32; }
  };
  Peaks measure_peaks();
  double fma_peak(DType type);
  void rate(Row& row) const;
  Row attempt(const Work& work);
  void compare(const Work& work, Row& row);

  Effort effort_;
  plan::Placement placement_;
  parallel::Team team_;
  ops::Context ctx_;
  std::string products_;
  Report report_;
};

}  // namespace ditrain::bench
