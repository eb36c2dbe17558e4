#include "ditrain/train/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/commit.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/platform/limits.hpp"
#include "ditrain/train/memory_plan.hpp"
#include "ditrain/train/placement.hpp"
#include "ditrain/train/train_step.hpp"
#include "ditrain/version.hpp"

namespace ditrain::train {
namespace {

constexpr double kPeakSeconds = 0.25, kMaxDrift = 0.03, kMaxShare = 1.02;
constexpr int kMaxAttempts = 5;

double fma_peak_gflops(parallel::Team& team) {
  std::vector<double> flops(size_t(team.num_workers()));
  team.run([&](const parallel::Worker& w) { flops[size_t(w.worker)] = kernels::measure_fma_peak(DType::kF32, kPeakSeconds); });
  double sum = 0;
  for (double f : flops) sum += f;
  return sum * 1e-9;
}

Config bench_config(const StepBench& bench) {
  Config config;
  config.model.name = bench.model;
  nn::apply_name(config.model);
  config.train.global_batch = bench.batch;
  config.train.recompute = bench.recompute;
  validate_without_data(config);
  return config;
}

dataset::Batch random_batch(const nn::DitConfig& m, int64_t batch) {
  const RandomKey key(0, Stream::kTest, 0);
  dataset::Batch b;
  b.images.resize(size_t(batch * m.in_channels * m.pixels()));
  key.fill_normal(b.images.data(), int64_t(b.images.size()));
  for (int64_t i = 0; i < batch; ++i) b.labels.push_back(int64_t(key.below(uint64_t(i), uint64_t(m.num_classes))));
  return b;
}

struct Sample {
  double seconds;
  PhaseTimes phases;
};

// Fills in the times, the peak and the drift between the peaks before and after.
void time_row(TrainStep& step, const dataset::Batch& batch, parallel::Team& team, int64_t repeats, BenchRow& row) {
  Progress progress;
  step.run(batch, progress);  // first touch of all memory
  std::vector<Sample> samples;
  const double before = fma_peak_gflops(team);
  for (int64_t i = 0; i < repeats; ++i) {
    const double start = now_s();
    const StepResult result = step.run(batch, progress);
    samples.push_back({now_s() - start, result.seconds});
  }
  const double after = fma_peak_gflops(team);
  std::sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.seconds < b.seconds; });
  const Sample& median = samples[samples.size() / 2];
  row.median_s = median.seconds, row.min_s = samples.front().seconds, row.max_s = samples.back().seconds;
  row.forward_s = median.phases[Phase::kForward], row.backward_s = median.phases[Phase::kBackward];
  row.optimizer_s = median.phases[Phase::kOptimizer];
  row.peak_gflops = std::max(before, after);
  row.drift = std::fabs(before - after) / row.peak_gflops;
}

}  // namespace

BenchReport bench_step(const StepBench& bench) {
  const Config config = bench_config(bench);
  const auto comm = dist::make_null_communicator();
  ParallelConfig wanted;
  wanted.threads = bench.threads;
  const Placement placement = plan_placement(wanted, *comm);
  check_memory(plan_memory(config, 1), config, 1, 1);

  parallel::Team team(placement.team());
  ops::Context ctx(team);
  nn::Dit model(config.model);
  model.parameters().allocate(autograd::ParameterStore::For::kTraining);
  nn::initialise(model, 0);
  copy(model.parameters().values, model.parameters().ema);
  TrainStep step(config, model, *comm, ctx);
  step.allocate();
  const dataset::Batch batch = random_batch(config.model, bench.batch);

  BenchRow row{.name = "step " + bench.model, .recompute = bench.recompute, .batch = bench.batch};
  for (int attempt = 0; attempt < kMaxAttempts && row.drift > kMaxDrift; ++attempt) {
    BenchRow again = row;
    time_row(step, batch, team, bench.repeats, again);
    if (attempt == 0 || again.drift < row.drift) row = again;
  }
  row.gflops = 6e-9 * nn::forward_macs(config.model) * double(bench.batch) / row.median_s;
  row.share = row.gflops / row.peak_gflops;
  row.images_per_second = double(bench.batch) / row.median_s;
  row.peak_rss_bytes = platform::peak_resident_bytes();
  row.kept_bytes_per_image = step.tape().kept_bytes() / size_t(bench.batch);
  if (row.share > kMaxShare)
    throw RunError({.where = "ditbench",
                    .what = "share of the peak",
                    .got = std::to_string(row.share),
                    .expected = "at most 1.02: the measured peak is too low",
                    .hint = "again on a quiet machine"});
  return {.threads = placement.threads, .rows = {row}};
}

std::string describe(const BenchReport& report) {
  std::string s = fmt::format("{:<18}{:>6}{:>8}{:>10}{:>9}{:>9}{:>11}{:>8}{:>12}{:>14}\n", "row", "batch", "threads",
                              "median s", "img/s", "TFLOP/s", "peak TF/s", "MFU", "peak RSS", "kept/image");
  for (const BenchRow& r : report.rows) {
    s += fmt::format("{:<18}{:>6}{:>8}{:>10.3f}{:>9.2f}{:>9.3f}{:>11.3f}{:>6.1f} %{:>12}{:>14}\n", r.name, r.batch,
                     report.threads, r.median_s, r.images_per_second, r.gflops * 1e-3, r.peak_gflops * 1e-3,
                     100 * r.share, format_bytes(r.peak_rss_bytes), format_bytes(r.kept_bytes_per_image));
    s += fmt::format(
        "  of which forward {:.3f} s, backward {:.3f} s (recompute: {}), optimiser {:.3f} s; fastest {:.3f} s, slowest "
        "{:.3f} s\n",
        r.forward_s, r.backward_s, r.recompute, r.optimizer_s, r.min_s, r.max_s);
    if (r.drift > kMaxDrift)
      s += fmt::format("  the FMA peaks before and after differ by {:.1f} %: the machine was not quiet\n",
                       100 * r.drift);
  }
  return s;
}

std::string to_json(const BenchReport& report) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  double peak = 0;
  for (const BenchRow& r : report.rows) {
    peak = std::max(peak, r.peak_gflops);
    rows.push_back({{"name", r.name},
                    {"dtype", r.dtype},
                    {"recompute", r.recompute},
                    {"batch", r.batch},
                    {"median_s", r.median_s},
                    {"min_s", r.min_s},
                    {"max_s", r.max_s},
                    {"gflops", r.gflops},
                    {"drift", r.drift},
                    {"share", r.share},
                    {"images_per_second", r.images_per_second},
                    {"mfu", r.share},
                    {"peak_rss_bytes", r.peak_rss_bytes},
                    {"kept_bytes_per_image", r.kept_bytes_per_image},
                    {"isa", kernels::chosen_isa()}});
  }
  const nlohmann::ordered_json j = {{"host", platform::probe_topology().machine},
                                    {"commit", kCommit},
                                    {"threads", report.threads},
                                    {"peak", {{"f32_gflops", peak}}},
                                    {"rows", rows}};
  return j.dump(2) + "\n";
}

}  // namespace ditrain::train
