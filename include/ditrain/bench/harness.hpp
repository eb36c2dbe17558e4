// Times a piece of work so that the number can be trusted: peak loops before and after, alternation with rivals,
// medians.
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
  double peak_s = 0.1;        ///< duration of one peak loop
  int max_attempts = 5;       ///< most attempts at a row whose drift is above kMaxDrift
  int most_looks = 120;       ///< most looks of a run at whether slow cores have recovered, half a second apart
  double patience_s = 60;     ///< no further attempt at a row that has taken longer than this
  double max_share = 1.02;    ///< a larger share means that the peak was measured wrong
  double settle_s = 0.05;     ///< pause after a rival, until its threads sleep (OpenBLAS' spin for some 25 ms)
  bool cold_arrays = true;    ///< memory benches use arrays larger than the last cache; false: some 100 KB
  double (*clock)() = now_s;  ///< clock of the calls, in seconds; tests replace it

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
  double flop = 0;                   ///< FLOP per call, if arithmetic limits it (by the peak of `dtype`)
  double bytes = 0;                  ///< bytes that a call moves, if memory limits it
  std::function<void()> limit = {};  ///< runs once the limiting loop, which moves the same bytes
  std::vector<Rival> rivals = {};
  std::vector<Field> details = {};
  bool once = false;  ///< a single call, whatever the drift: for work that takes minutes
};

/// Bytes of an array that the last caches do not hold, all of them together: eight times one, at least four times their
/// sum and 64 MiB, but at most a sixteenth of the memory.
size_t bytes_beyond_caches(const platform::Topology& topology, size_t memory_bytes);

class Harness {
 public:
  /// threads 0: all cores that this process may use; clusters 0: as parallel.clusters: auto. With `ranks` the call is
  /// collective, and ranks of a node whose affinity masks overlap share its cores.
  /// Errors:   InputError for more clusters than threads
  explicit Harness(int64_t threads, const Effort& effort = {}, int64_t clusters = 0,
                   dist::Communicator* ranks = nullptr);

  ops::Context& ctx() { return ctx_; }
  const Effort& effort() const { return effort_; }
  const plan::Placement& placement() const { return placement_; }
  int num_threads() const { return placement_.threads; }

  /// Applies section `kernels` of a config to the rows that follow. A new harness has the default settings without a
  /// tuning file, because a damaged tuning file must not prevent that a new one is written.
  void apply(const config::Config& config);
  const std::string& products() const { return products_; }  ///< which code computes GEMMs, with which cache blocks

  /// Measures one row: alternates our work with its limiting loop, then with the rivals.
  /// share     flop / median / the highest FMA peak of the run (the f32 peak if the CPU has no bf16 product); rows that
  ///           were added are rated again when a higher peak is measured. With a limiting loop: its best time / our
  ///           median, because a limit is a maximum
  /// peers     median over repeats of their time / our time
  /// A row whose drift is above kMaxDrift, or whose share is above max_share, is measured again. After max_attempts the
  /// attempt with the least drift counts, and a peak that it exceeds is measured again.
  /// Errors:   RunError "stopped by a signal", between two calls, if the program has installed the flags of signals
  Row measure(const Work& work);

  void add(Row row) {
    rate(row);
    if (on_row) on_row(row);
    report_.rows.push_back(std::move(row));
  }
  /// Called with every row that is added, so that long benches can show their progress.
  std::function<void(const Row&)> on_row = {};
  void note(std::string line) { report_.notes.push_back(std::move(line)); }
  void note(const std::vector<std::string>& lines) {
    report_.notes.insert(report_.notes.end(), lines.begin(), lines.end());
  }
  /// All rows so far, with the highest peaks measured.
  const Report& report();
  /// The same without measuring anything.
  const Report& report_so_far() const { return report_; }
  const std::vector<Row>& rows() const { return report_.rows; }
  /// Lets the peak of the process' resident memory begin anew, for the row that follows. A note says it once if the
  /// kernel refuses: peaks are those since the start then.
  void restart_peak_memory();
  /// Checks the shares of all rows.
  /// Errors:   RunError that names the rows whose share is above max_share, whose limit must be wrong
  void check_shares() const;

  /// Bytes of an array that no cache holds, see bytes_beyond_caches and Effort::cold_arrays.
  size_t cold_bytes() const;
  /// Runs one kernels::stream_pass on the team over arrays of n elements.
  void stream(const kernels::StreamMix& mix, const std::vector<float*>& arrays, int64_t n);

 private:
  struct Peaks {
    double f32 = 0, bf16 = 0;  // GFLOP/s
    double of(const std::string& dtype) const { return dtype == "bf16" && bf16 > 0 ? bf16 : f32; }
  };
  Peaks measure_peaks();
  void wait_for_quiet(DType type);
  double fma_peak(DType type);
  void rate(Row& row) const;
  Row attempt(const Work& work);
  void compare(const Work& work, Row& row);

  Effort effort_;
  int looks_ = 0;  // in vain, of wait_for_quiet
  bool peak_is_of_all_ = false;
  plan::Placement placement_;
  parallel::Team team_;
  ops::Context ctx_;
  std::string products_;
  Report report_;
};

}  // namespace ditrain::bench
