#include "ditrain/bench/harness.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "ditrain/base/error.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/plan/kernel_settings.hpp"
#include "ditrain/platform/limits.hpp"
#include "reach.hpp"
#include "stop.hpp"
#include "turns.hpp"

namespace ditrain::bench {
namespace {

// Every core computes: nothing is set aside.
plan::Placement place(int64_t threads, int64_t clusters, dist::Communicator* ranks) {
  config::Config wanted;
  wanted.parallel.threads = threads, wanted.parallel.clusters = clusters;
  wanted.parallel.comm_cores = wanted.memory.copy_cores = 0;
  const auto alone = dist::make_null_communicator();
  return plan::plan_placement(wanted, ranks ? *ranks : *alone);
}

double mean_seconds_of(const std::function<void()>& call, int64_t calls, const Effort& effort) {
  const double start = effort.clock();
  for (int64_t i = 0; i < calls; ++i) call();
  return (effort.clock() - start) / double(calls);
}

// One of those that take turns, with the seconds of its repeats.
struct Timed {
  std::function<void()> call;
  bool rival = false;
  int64_t calls = 1;  // of one repeat
  std::vector<double> seconds = {};

  void warm_up(const Effort& effort) {
    const double repeat_s = effort.repeat_s;
    double t = mean_seconds_of(call, 1, effort);
    if (t < 10 * repeat_s) t = mean_seconds_of(call, 1, effort);  // the first call may have paid for page faults
    calls = std::clamp<int64_t>(int64_t(std::ceil(repeat_s / std::max(t, 1e-9))), 1, 1000000);
  }
};

void pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// After a rival's turn its threads may still spin: everyone rests, then wakes its own threads.
void take_turns(std::vector<Timed>& contenders, const Effort& effort, bool once) {
  const bool rivals = contenders.back().rival;
  for (Timed& c : contenders) {
    check_stop();
    if (!once) c.warm_up(effort);
    if (c.rival) pause(effort.settle_s);
  }
  for (int64_t i = 0; i < (once ? 1 : effort.repeats); ++i)
    for (Timed& c : contenders) {
      check_stop();
      if (rivals) c.call();
      c.seconds.push_back(mean_seconds_of(c.call, c.calls, effort));
      if (c.rival) pause(effort.settle_s);
    }
}

double difference(double before, double after) { return std::fabs(before - after) / std::max(before, after); }

}  // namespace

Effort Effort::quick() {
  return {.repeats = 1,
          .repeat_s = 0,
          .peak_s = 1e-3,
          .max_attempts = 1,
          .most_looks = 0,
          .max_share = std::numeric_limits<double>::infinity(),
          .settle_s = 0,
          .cold_arrays = false};
}

Harness::Harness(int64_t threads, const Effort& effort, int64_t clusters, dist::Communicator* ranks)
    : effort_(effort), placement_(place(threads, clusters, ranks)), team_(placement_.team()), ctx_(team_) {
  report_.threads = placement_.threads;
  report_.notes = placement_.notes;
  config::Config config;
  config.kernels.tuned = config::TunedFrom::kOff;
  apply(config);
}

void Harness::apply(const config::Config& config) {
  products_ = plan::apply_kernel_settings(config, placement_.topology, ctx_);
}

// The best of several bursts: whatever else runs on the machine can only lower one.
double Harness::fma_peak(DType type) {
  constexpr int kBursts = 4;
  double best = 0;
  for (int burst = 0; burst < kBursts; ++burst) {
    std::vector<double> flops(static_cast<size_t>(num_threads()));
    team_.run([&](const parallel::Worker& w) {
      flops[size_t(w.worker)] = kernels::measure_fma_peak(type, effort_.peak_s / kBursts);
    });
    best = std::max(best, std::accumulate(flops.begin(), flops.end(), 0.0));
  }
  return best * 1e-9;
}

Harness::Peaks Harness::measure_peaks() {
  const Peaks p{fma_peak(DType::kF32), fma_peak(DType::kBF16)};
  report_.peak_f32_gflops = std::max(report_.peak_f32_gflops, p.f32);
  report_.peak_bf16_gflops = std::max(report_.peak_bf16_gflops, p.bf16);
  for (Row& row : report_.rows) rate(row);
  return p;
}

// The cores of a virtual machine may be slower for seconds, while others use the host: what is measured then says
// little. After most_looks looks a run no longer waits.
void Harness::wait_for_quiet(DType type) {
  const std::string dtype = dtype_name(type);
  for (; looks_ < effort_.most_looks; ++looks_) {
    check_stop();
    const double now = measure_peaks().of(dtype);
    if (now >= (1 - kMaxDrift) * Peaks{report_.peak_f32_gflops, report_.peak_bf16_gflops}.of(dtype)) return;
    pause(10 * effort_.settle_s);
  }
}

// By the highest peaks so far. A row that memory limits has a limit of its own, but does not run as it could on a core
// that does not compute as it could.
void Harness::rate(Row& row) const {
  if (row.lowest_peak == 0) return;
  const double peak = Peaks{report_.peak_f32_gflops, report_.peak_bf16_gflops}.of(row.dtype);
  row.drift = std::max(row.spread, 1 - row.lowest_peak / peak);
  if (row.gb_s > 0) return;
  row.limit = peak;
  row.share = row.gflops / row.limit;
  for (Field& f : row.details)
    if (f.name == "mfu") f.value = row.share;
}

// Our seconds beside the limit without rivals in between: resting lets the cores fall asleep.
Row Harness::attempt(const Work& work) {
  std::vector<Timed> alone = {{work.call}};
  if (work.limit) alone.push_back({work.limit});
  const Peaks before = measure_peaks();
  take_turns(alone, effort_, work.once);
  const Peaks after = measure_peaks();

  const std::vector<double>& ours = alone[0].seconds;
  Row row{.name = work.name, .dtype = dtype_name(work.dtype), .time = timing_of(ours), .details = work.details};
  row.spread = 1 - row.time.min_s / row.time.median_s;
  if (work.limit) {
    const std::vector<double>& loop = alone[1].seconds;
    row.gb_s = 1e-9 * work.bytes / row.time.median_s;
    row.limit = 1e-9 * work.bytes / quantile(loop, 0);
    row.share = row.gb_s / row.limit;
    const double loop_spread = 1 - quantile(loop, 0) / quantile(loop, 0.5);
    row.spread = std::max({row.spread, loop_spread, difference(loop.front(), loop.back())});
  } else {
    row.gflops = 1e-9 * work.flop / row.time.median_s;
  }
  row.lowest_peak = std::min(before.of(row.dtype), after.of(row.dtype));
  rate(row);
  return row;
}

// Our rate / that of each rival, in turns.
void Harness::compare(const Work& work, Row& row) {
  if (work.rivals.empty()) return;
  std::vector<Timed> contenders = {{work.call}};
  for (const Rival& r : work.rivals) contenders.push_back({r.call, true});
  if (!work.once) wait_for_quiet(work.dtype);
  take_turns(contenders, effort_, work.once);
  for (size_t i = 0; i < work.rivals.size(); ++i)
    row.peers.emplace_back(work.rivals[i].name, median_ratio(contenders[i + 1].seconds, contenders[0].seconds));
}

Row Harness::measure(const Work& work) {
  DITRAIN_CHECK(work.flop > 0 || (work.limit && work.bytes > 0), "what limits " + work.name + "?");
  const auto doubtful = [&](const Row& row) { return row.drift > kMaxDrift || row.share > effort_.max_share; };
  if (!work.rivals.empty()) pause(effort_.settle_s);  // they may have been called already
  const double start = effort_.clock();
  if (!work.once) wait_for_quiet(work.dtype);
  Row best = attempt(work);
  for (int i = 1; i < effort_.max_attempts && doubtful(best) && !work.once; ++i) {
    if (effort_.clock() - start > effort_.patience_s) break;
    pause(10 * effort_.settle_s);  // two cores of a virtual machine may share one of the host for a while
    wait_for_quiet(work.dtype);
    Row again = attempt(work);
    rate(best);
    if (again.drift < best.drift || !doubtful(again)) best = std::move(again);
  }
  // A peak can only be measured too low; so can those beside a row, which are not measured again.
  for (int i = 1; i < effort_.max_attempts && best.gflops > 0 && best.share > effort_.max_share; ++i) {
    pause(10 * effort_.settle_s);
    measure_peaks();
    rate(best);
  }
  compare(work, best);
  return best;
}

void Harness::check_shares() const {
  std::string names;
  for (const Row& row : report_.rows)
    if (row.share > effort_.max_share)
      names += (names.empty() ? "" : ", ") + row.name + " (" + std::to_string(row.share) + ")";
  if (!names.empty())
    throw RunError({.where = "ditbench",
                    .what = "share of what the machine can do",
                    .got = names,
                    .expected = "at most " + std::to_string(effort_.max_share) + ": their limit was measured too low",
                    .hint = "again on a quiet machine"});
}

size_t bytes_beyond_caches(const platform::Topology& topology, size_t memory_bytes) {
  const size_t times = std::max<size_t>(8, 4 * size_t(topology.l3_caches));
  return std::max(std::min(times * topology.l3_bytes, memory_bytes / 16), size_t{64} << 20);
}

size_t Harness::cold_bytes() const {
  return effort_.cold_arrays ? bytes_beyond_caches(placement_.topology, platform::memory_limit().bytes)
                             : size_t{100} << 10;
}

void Harness::stream(const kernels::StreamMix& mix, const std::vector<float*>& arrays, int64_t n) {
  bench::stream(ctx_, mix, arrays, n);
}

void Harness::restart_peak_memory() {
  if (platform::restart_peak_resident_bytes() || peak_is_of_all_) return;
  peak_is_of_all_ = true;
  note("peak_rss_bytes: the most since the start, as the kernel lets no row begin anew (/proc/self/clear_refs)");
}

const Report& Harness::report() {
  if (report_.read_gb_s > 0) return report_;
  const int64_t n = int64_t(cold_bytes() / sizeof(float));
  const Tensor x({n});
  const Pin<float> p(x);
  stream({.writes = 1}, {p}, n);  // untouched pages would all be the same zeros
  const auto read = [&] { stream({.reads = 1}, {p}, n); };
  std::vector<double> seconds;
  for (int64_t i = 0; i < effort_.repeats; ++i) seconds.push_back(mean_seconds_of(read, 1, effort_));
  report_.read_gb_s = 1e-9 * double(n) * sizeof(float) / quantile(seconds, 0);
  return report_;
}

}  // namespace ditrain::bench
