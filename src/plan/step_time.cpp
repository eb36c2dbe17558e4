#include "ditrain/plan/step_time.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <limits>
#include <tuple>

#include "ditrain/base/bytes.hpp"
#include "ditrain/base/clock.hpp"
#include "ditrain/base/duration.hpp"
#include "ditrain/diffusion/sampler.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/nn/block.hpp"
#include "ditrain/nn/model.hpp"
#include "ditrain/optim/optimizer.hpp"

namespace ditrain::plan {
namespace {

using ops::WorkKind;

// Of the forward work of a block, what backward computes again; as kShareAgain of automem_plan.cpp, by kind of work.
bool computes_block_again(const config::Config& config, int64_t block) {
  const auto& of_blocks = config.train.recompute_of_blocks;
  const auto recompute =
      of_blocks.empty() ? config.train.recompute.value_or(nn::Recompute::kSelective) : of_blocks[size_t(block)];
  return recompute == nn::Recompute::kBlock;
}

StepWork work_of_step(const config::Config& config, double samples, double parameters) {
  const nn::ModelConfig& m = config.model;
  const double width = double(m.hidden_size);
  double tokens = 0, again = 0, attention = 0;  // of all blocks; again: of those whose forward runs twice
  for (int64_t i = 0; i < m.depth; ++i) {
    const int64_t of_block = nn::tokens_of_block(config.train.routing, m, i);
    tokens += double(of_block);
    again += computes_block_again(config, i) ? double(of_block) : 0;
    attention += nn::attention_macs(m, of_block);
  }
  const double more = 1 + again / tokens / 3;
  StepWork work;
  work.gemm_flop = 6 * (nn::forward_macs(m, config.train.routing) - attention) * samples * more;
  work.gemm_flop_per_width = work.gemm_flop / width;
  work.attention_macs = attention * samples * more;
  work.attention_values = tokens * width * samples * more;
  work.values = work.attention_values;
  work.parameters = parameters;
  return work;
}

// A block of fixed size, and the times of one step of it.
struct Reference {
  int64_t width, tokens_per_side, samples;
};
// The narrow one is as small models are, the wide one leaves the caches as large models do; together they take about a
// tenth of a second on a core.
constexpr Reference kNarrow{192, 8, 4}, kWide{512, 16, 1};
constexpr int kRepeats = 3;

config::Config config_of(const Reference& reference, DType precision) {
  config::Config config;
  nn::ModelConfig& m = config.model;
  m.name = "custom";
  m.hidden_size = reference.width, m.depth = 2, m.num_heads = reference.width / 64;
  m.input_height = m.input_width = m.patch_size * reference.tokens_per_side;
  config.train.precision = precision;
  return config;
}

struct Measured {
  StepWork work;
  ops::WorkTimes times;
  double total_s = std::numeric_limits<double>::infinity();
};

double cpu_time_s() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// On one worker, by the time that this thread had a core: other programs then only disturb the caches.
Measured measure(const Reference& reference, DType precision) {
  const config::Config config = config_of(reference, precision);
  parallel::Team team({.num_workers = 1});
  const int64_t batch = reference.samples;
  nn::Model model(config.model);
  autograd::ParameterStore& store = model.parameters();
  store.allocate(autograd::ParameterStore::For::kTraining, precision, {.states = optim::state_arrays()});
  nn::initialise(model, 0);
  nn::ModelPass pass(model, batch, autograd::Mode::kTraining, {.precision = precision});
  pass.allocate();
  ops::Context ctx(team);
  for (int64_t i = 0; i < batch; ++i) pass.t()[size_t(i)] = double(i);
  Measured best;
  best.work = work_of_step(config, double(batch), double(store.num_parameters()));
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const ops::WorkTimes before = ctx.times();
    const double start_s = now_s(), cpu_start_s = cpu_time_s();
    pass.forward(ctx);
    pass.backward(ctx, autograd::Gradients::kOverwrite);
    optim::adamw_ema_step(ctx, {}, {.step = repeat}, store);
    const double cpu_s = cpu_time_s() - cpu_start_s, had_core = cpu_s / (now_s() - start_s);
    if (cpu_s >= best.total_s) continue;
    best.total_s = cpu_s;
    for (size_t i = 0; i < best.times.working_s.size(); ++i)
      best.times.working_s[i] = had_core * (ctx.times().working_s[i] - before.working_s[i]);
  }
  return best;
}

// a and b, at least 0, of seconds = a x + b y through two measurements; without such, a alone through the second.
std::pair<double, double> line_through(double x1, double y1, double s1, double x2, double y2, double s2) {
  const double determinant = x1 * y2 - x2 * y1;
  const double a = (s1 * y2 - s2 * y1) / determinant, b = (x1 * s2 - x2 * s1) / determinant;
  if (std::isfinite(a) && std::isfinite(b) && a > 0 && b >= 0) return {a, b};
  return {s2 / x2, 0};
}

// Folders on the way to one that does not exist yet: the nearest that does.
std::filesystem::path existing_part(std::filesystem::path folder) {
  std::error_code ignored;
  folder = std::filesystem::absolute(folder, ignored);
  while (!folder.empty() && folder != folder.root_path() && !std::filesystem::exists(folder, ignored))
    folder = folder.parent_path();
  return folder;
}

std::string describe_checkpoints(const RunPlan& plan, const std::string& run_folder) {
  const CheckpointDisk disk = checkpoint_disk(plan.config);
  std::error_code unknown;
  const auto space = std::filesystem::space(existing_part(run_folder), unknown);
  const std::string snapshots =
      disk.snapshot_bytes == 0 ? "" : ", snapshots " + format_bytes(size_t(disk.snapshot_bytes));
  return fmt::format("  checkpoint   {}; up to {:.0f} at a time take {}{}{}\n",
                     format_bytes(size_t(disk.checkpoint_bytes)), disk.kept,
                     format_bytes(size_t(disk.checkpoint_bytes * disk.kept)), snapshots,
                     unknown ? "" : fmt::format(", of {} free in {}", format_bytes(space.available), run_folder));
}

// Settings that shorten the run, with the time of a step that they would give.
std::string what_shortens(const RunPlan& plan, const MachineRates& rates, const MachineRates* bf16, double step_s,
                          double steps_s, double beside_s) {
  std::string text;
  const auto add = [&](const std::string& what) {
    text += (text.empty() ? "  shorter      " : "               ") + what + "\n";
  };
  if (bf16 != nullptr)
    if (const double s = predict_step(plan, *bf16).total_s(); s < 0.95 * step_s)
      add(fmt::format("--set train.precision=bf16: {:.3g} s per step", s));
  RunPlan less = plan;
  less.config.train.recompute = nn::Recompute::kSelective, less.config.train.recompute_of_blocks.clear();
  if (const double s = predict_step(less, rates).total_s(); s < 0.95 * step_s)
    add(fmt::format("--set train.recompute=selective: {:.3g} s per step, with more memory", s));
  if (beside_s > 0.2 * steps_s)
    add("fewer or smaller sample grids and distances: sample.every_steps, sample.num_images");
  if (plan.samples > 1)
    add(fmt::format("more nodes: the {} samples of a rank and step can be divided over up to {} times as many ranks",
                    plan.samples, plan.samples));
  return text;
}

// FLOP/s of a core while the others rest, and while all workers compute: many processors have a lower clock then. Other
// programs can only lower a measurement.
constexpr int kPeaks = 20;
constexpr double kPeak_s = 1e-3;
double peak_alone(DType precision) {
  double peak = 0;
  for (int i = 0; i < kPeaks; ++i) peak = std::max(peak, kernels::measure_fma_peak(precision, kPeak_s));
  return peak;
}
double peak_of_each(parallel::Team& team, DType precision) {
  std::vector<double> peaks(size_t(team.num_workers()), 0);
  for (int i = 0; i < kPeaks; ++i)
    team.run([&](const parallel::Worker& w) {
      double& peak = peaks[size_t(w.worker)];
      peak = std::max(peak, kernels::measure_fma_peak(precision, kPeak_s));
    });
  double sum = 0;
  for (const double peak : peaks) sum += peak;
  return sum / double(peaks.size());
}

int workers_of(const RunPlan& plan) {
  int workers = 0;
  for (const int n : plan.place.cluster_sizes) workers += n;
  return std::max(1, workers);
}

}  // namespace

StepWork work_of(const RunPlan& plan) {
  nn::Model model(plan.config.model);
  const double all = double(model.parameters().num_parameters()), sharing = double(plan.world_size / plan.replicas);
  const bool shards = plan.config.dist.shard_optimizer;
  StepWork work = work_of_step(plan.config, double(plan.samples), all / (shards ? plan.replicas : 1) / sharing);
  for (double* count : {&work.gemm_flop, &work.gemm_flop_per_width, &work.attention_macs, &work.attention_values})
    *count /= sharing;
  work.summed = plan.gradients.replicas > 1 ? all / sharing : 0;
  if (plan.gradients.groups > 1) work.summed += all / double(plan.config.dist.outer->every);
  return work;
}

MachineRates measure_rates(parallel::Team& team, DType precision) {
  const Measured narrow = measure(kNarrow, precision), wide = measure(kWide, precision);
  const StepWork &n = narrow.work, &w = wide.work;
  MachineRates rates;
  const auto seconds = [](const Measured& m, WorkKind kind) { return m.times[kind]; };
  std::tie(rates.gemm_s, rates.gemm_per_width_s) =
      line_through(n.gemm_flop, n.gemm_flop_per_width, seconds(narrow, WorkKind::kProduct), w.gemm_flop,
                   w.gemm_flop_per_width, seconds(wide, WorkKind::kProduct));
  std::tie(rates.attention_mac_s, rates.attention_value_s) =
      line_through(n.attention_macs, n.attention_values, seconds(narrow, WorkKind::kAttention), w.attention_macs,
                   w.attention_values, seconds(wide, WorkKind::kAttention));
  rates.value_s = seconds(wide, WorkKind::kElementwise) / w.values;
  rates.parameter_s = seconds(wide, WorkKind::kOptimizer) / w.parameters;
  const DType type = kernels::measure_fma_peak(precision, 1e-4) > 0 ? precision : DType::kF32;
  double jobs_s = 0;
  for (const double s : wide.times.working_s) jobs_s += s;
  rates.overhead = std::max(1.0, wide.total_s / jobs_s) * std::max(1.0, peak_alone(type) / peak_of_each(team, type));
  return rates;
}

StepTime predict_step(const RunPlan& plan, const MachineRates& rates) {
  const StepWork work = work_of(plan);
  const double factor = rates.overhead / workers_of(plan);
  return {.gemm_s = factor * (work.gemm_flop * rates.gemm_s + work.gemm_flop_per_width * rates.gemm_per_width_s),
          .attention_s =
              factor * (work.attention_macs * rates.attention_mac_s + work.attention_values * rates.attention_value_s),
          .values_s = factor * work.values * rates.value_s,
          .update_s = factor * work.parameters * rates.parameter_s,
          .sums_s = factor * work.summed * rates.parameter_s * kPassesOfSum / kPassesOfUpdate};
}

std::string describe_time(const RunPlan& plan, const MachineRates& rates, const MachineRates* bf16,
                          const std::string& run_folder) {
  const config::Config& c = plan.config;
  const StepTime step = predict_step(plan, rates);
  const double step_s = step.total_s(), steps = double(c.train.steps);
  const double steps_s = step_s * steps, beside_s = predict_evaluation(plan, step);
  const auto share = [&](double part_s) { return 100 * part_s / step_s; };
  std::string text = fmt::format(
      "time, predicted from rates of this machine that were measured now:\n"
      "  step         {:.3g} s, {:.3g} images/s: GEMMs {:.0f} %, attention {:.0f} %, other passes {:.0f} %, update "
      "{:.0f} "
      "%, sums of ranks {:.0f} %\n"
      "  {:<11}  {}, and {} of samples and validation\n",
      step_s, double(c.train.global_batch) / step_s, share(step.gemm_s), share(step.attention_s), share(step.values_s),
      share(step.update_s), share(step.sums_s), fmt::format("{} steps", c.train.steps), format_duration(steps_s),
      format_duration(beside_s));
  if (!c.data.vae.empty())
    text += "               encoding images (data.vae) is not counted: ditbench vae measures it\n";
  if (c.optimizer.kind == optim::Kind::kMuon)
    text += "               the products of optimizer.kind: muon are not counted\n";
  return text + describe_checkpoints(plan, run_folder) + what_shortens(plan, rates, bf16, step_s, steps_s, beside_s);
}

double predict_evaluation(const RunPlan& plan, const StepTime& step) {
  const config::Config& c = plan.config;
  // Samples take no routes.
  const double more = nn::forward_macs(c.model) / nn::forward_macs(c.model, c.train.routing);
  const double forward_s = more * step.compute_s() / 3 / double(plan.samples);  // per sample, on a rank
  const auto times = [&](int64_t every) {                                       // at multiples, and at the end
    return every == 0 ? 0.0 : std::ceil(double(c.train.steps) / double(every));
  };
  double samples = times(c.sample.every_steps) * double(c.sample.num_images) +
                   times(c.eval.fid_every_steps) * double(c.eval.fid_samples);
  double passes = times(c.eval.every_steps) * double(c.eval.num_images) * (c.model.num_classes > 1 ? 2 : 1);
  if (samples > 0) {
    const diffusion::SamplerConfig sampler = config::sampler_of(c);
    const auto process = diffusion::make_process(c.diffusion, c.model.learn_sigma);
    passes += samples * double(diffusion::model_times(*process, sampler).size()) * (sampler.cfg_scale != 1 ? 2 : 1);
  }
  return passes * forward_s / double(plan.replicas);
}

}  // namespace ditrain::plan
