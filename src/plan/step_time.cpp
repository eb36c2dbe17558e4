#include "ditrain/plan/step_time.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/diffusion/sampler.hpp"
#include "ditrain/eval/features.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/nn/block.hpp"
#include "ditrain/nn/model.hpp"
#include "ditrain/ops/random.hpp"
#include "ditrain/optim/optimizer.hpp"

namespace ditrain::plan {
namespace {

using ops::WorkKind;

nn::Recompute recompute_of(const config::Config& config, int64_t block) {
  const auto& of_blocks = config.train.recompute_of_blocks;
  return of_blocks.empty() ? config.train.recompute.value_or(nn::Recompute::kSelective) : of_blocks[size_t(block)];
}

StepWork work_of_step(const config::Config& config, double samples, double parameters) {
  const nn::ModelConfig& m = config.model;
  const double width = double(m.hidden_size);
  double tokens = 0, again = 0, attention = 0;  // of all blocks; again: of those whose forward runs twice
  for (int64_t i = 0; i < m.depth; ++i) {
    const int64_t of_block = nn::tokens_of_block(config.train.routing, m, i);
    tokens += double(of_block);
    again += recompute_of(config, i) == nn::Recompute::kBlock ? double(of_block) : 0;
    attention += nn::attention_macs(m, of_block);
  }
  const double more = 1 + again / tokens / 3;
  StepWork work;
  work.gemm_flop = 6 * (nn::forward_macs(m, config.train.routing) - attention) * samples * more;
  work.gemm_flop_per_width = work.gemm_flop / width;
  work.attention_macs = attention * samples * more;
  work.attention_values = tokens * width * samples * more;
  work.values = work.attention_values;
  work.inputs = samples * double(m.in_channels * m.pixels());
  work.passes = double(m.depth);
  work.parameters = parameters;
  return work;
}

/// Rates are measured with `selective`. Of the forward pass, a third of a step, blocks compute 15 % again with it, and
/// 95 % with `block` (kShareAgain of automem_plan.cpp), which the count of work takes for all.
double share_of_work(const config::Config& config) {
  constexpr double kNone = 3, kSelective = 3.15, kBlock = 3.95;
  double passes = 0, counted = 0;
  for (int64_t i = 0; i < config.model.depth; ++i) {
    const nn::Recompute recompute = recompute_of(config, i);
    passes += recompute == nn::Recompute::kBlock ? kBlock : recompute == nn::Recompute::kNone ? kNone : kSelective;
    counted += kSelective * (recompute == nn::Recompute::kBlock ? 4.0 / 3 : 1);
  }
  return passes / counted;
}

// A model of fixed size.
struct Reference {
  int64_t width, tokens_per_side, samples;
  bool per_worker = true;  ///< each worker gets so many samples
};
// The time of the tiny one is that of starting and ending jobs; the narrow one is as small models are, the wide one
// leaves the caches as large models do. Together they take about a tenth of a second on a core.
constexpr Reference kTiny{32, 4, 1, false}, kNarrow{192, 8, 4}, kWide{512, 16, 1};
constexpr int64_t kDepth = 2;
constexpr int kRepeats = 9;
constexpr double kRepeatFor_s = 0.02;  // short steps are repeated for so long

config::Config config_of(const Reference& reference, DType precision) {
  config::Config config;
  nn::ModelConfig& m = config.model;
  m.name = "custom";
  m.hidden_size = reference.width, m.depth = kDepth, m.num_heads = std::max<int64_t>(1, reference.width / 64);
  m.input_height = m.input_width = m.patch_size * reference.tokens_per_side;
  config.train.precision = precision;
  return config;
}

struct Measured {
  StepWork work;
  ops::WorkTimes times;
  double total_s = 0, norm_s = 0;  // norm: of the gradient, which is not in the total
};

// The FLOP of products in an update, and their sum over matrices of FLOP / shorter side.
struct UpdateProducts {
  double flop = 0, flop_per_width = 0;
  double largest_share = 0;  ///< share of the costliest parameter
};
UpdateProducts products_of_update(const optim::Config& optimizer,
                                  const std::vector<const autograd::Parameter*>& parameters, DType arithmetic) {
  UpdateProducts sum;
  const auto whole_cost = optim::algorithm_of(optimizer).whole_cost;
  if (whole_cost == nullptr) return sum;
  double most = 0;
  for (const autograd::Parameter* p : parameters) {
    const double flop = 2 * whole_cost(*p, arithmetic);
    if (flop == 0) continue;
    const int64_t rows = p->shape.at(0) / p->stacked, columns = p->size() / p->shape.at(0);
    sum.flop += flop, sum.flop_per_width += flop / double(std::min(rows, columns));
    most = std::max(most, flop);
  }
  sum.largest_share = sum.flop > 0 ? most / sum.flop : 0;
  return sum;
}

double cpu_time_s() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

struct Call {
  double cpu_s = 0;
  ops::WorkTimes times = {};  // of the CPU time
};

// Calls f again and again; returns the median by the CPU time of this thread, which is the first worker: what other
// programs take then only disturbs the caches. The shortest call would be too good: cores change their pace, and a run
// lasts longer than its best moments.
template <class F>
Call typical_call(ops::Context& ctx, const F& f) {
  std::vector<Call> calls;
  double sum_s = 0;
  for (int repeat = 0; repeat < kRepeats || sum_s < kRepeatFor_s; ++repeat) {
    const ops::WorkTimes before = ctx.times();
    const double start_s = now_s(), cpu_start_s = cpu_time_s();
    f(repeat);
    Call& call = calls.emplace_back();
    call.cpu_s = cpu_time_s() - cpu_start_s;
    const double had_core = call.cpu_s / (now_s() - start_s);
    for (size_t i = 0; i < call.times.working_s.size(); ++i)
      call.times.working_s[i] = had_core * (ctx.times().working_s[i] - before.working_s[i]);
    sum_s += std::max(call.cpu_s, 1e-6);
  }
  const auto middle = calls.begin() + std::ptrdiff_t(calls.size() / 2);
  std::nth_element(calls.begin(), middle, calls.end(), [](const Call& a, const Call& b) { return a.cpu_s < b.cpu_s; });
  return *middle;
}

Measured measure(parallel::Team& team, const Reference& reference, DType precision) {
  const config::Config config = config_of(reference, precision);
  nn::Model model(config.model);
  autograd::ParameterStore& store = model.parameters();
  store.allocate(autograd::ParameterStore::For::kTraining, precision, {.states = optim::state_arrays()});
  nn::initialise(model, 0);
  const int64_t batch = reference.samples * (reference.per_worker ? team.num_workers() : 1);
  nn::ModelPass pass(model, batch, autograd::Mode::kTraining, {.precision = precision});
  pass.allocate();
  ops::Context ctx(team);
  for (int64_t i = 0; i < batch; ++i) pass.t()[size_t(i)] = double(i);
  const Call step = typical_call(ctx, [&](int repeat) {
    pass.forward(ctx);
    pass.backward(ctx, autograd::Gradients::kOverwrite);
    optim::adamw_ema_step(ctx, {}, {.step = repeat}, store);
  });
  const Call norm = typical_call(ctx, [&](int) { optim::gradient_norm(ctx, store); });
  return {.work = work_of_step(config, double(batch), double(store.num_parameters())),
          .times = step.times,
          .total_s = step.cpu_s,
          .norm_s = norm.cpu_s};
}

// WorkerRates::update_factor: products of an update have few rows, and jobs that are short. Of a square and a long
// matrix of the narrow model.
double measure_update_factor(parallel::Team& team, DType precision, const WorkerRates& rates) {
  config::Config config = config_of(kNarrow, precision);
  config.optimizer.kind = optim::Kind::kMuon;
  nn::Model model(config.model);
  autograd::ParameterStore& store = model.parameters();
  store.allocate(autograd::ParameterStore::For::kTraining, precision,
                 {.states = optim::state_arrays(config.optimizer)});
  nn::initialise(model, 0);
  ditrain::copy(store.values, store.grads);
  const std::vector<const autograd::Parameter*> matrices = {&store.find("blocks.0.attn.proj.weight"),
                                                            &store.find("blocks.0.mlp.fc1.weight")};
  const UpdateProducts products = products_of_update(config.optimizer, matrices, precision);
  ops::Context ctx(team);
  const Call call = typical_call(ctx, [&](int repeat) {
    for (const autograd::Parameter* p : matrices)
      optim::update(ctx, config.optimizer, {.step = repeat}, store, p->slice);
  });
  const double of_layers_s =
      rates.overhead * (products.flop * rates.gemm_s + products.flop_per_width * rates.gemm_per_width_s);
  return of_layers_s > 0 ? call.cpu_s * team.num_workers() / of_layers_s : 1;
}

// Of a value of a sample and worker.
double measure_noise(parallel::Team& team) {
  constexpr int64_t kSamples = 16, kElements = 4096;
  ops::Context ctx(team);
  std::vector<float> noise(size_t(kSamples * kElements));
  std::vector<RandomKey> keys;
  for (int64_t i = 0; i < kSamples; ++i) keys.emplace_back(0, Stream::kNoise, 0, uint64_t(i));
  const Call call = typical_call(ctx, [&](int) { ops::fill_normal(ctx, keys, kElements, noise.data()); });
  return call.cpu_s * team.num_workers() / double(noise.size());
}

// a and b, at least 0, of seconds = a x + b y through two measurements; without such, a alone through the second.
std::pair<double, double> line_through(double x1, double y1, double s1, double x2, double y2, double s2) {
  const double determinant = x1 * y2 - x2 * y1;
  const double a = (s1 * y2 - s2 * y1) / determinant, b = (x1 * s2 - x2 * s1) / determinant;
  if (std::isfinite(a) && std::isfinite(b) && a > 0 && b >= 0) return {a, b};
  return {s2 / x2, 0};
}

std::string describe_checkpoints(const RunPlan& plan, const std::string& run_folder) {
  const CheckpointDisk disk = checkpoint_disk(plan.config);
  const std::optional<double> space = files::free_bytes(run_folder);
  // The disk tier of all ranks of the node lies in the run folder unless it has a place of its own.
  const size_t tier =
      plan.automem && plan.config.memory.disk_path.empty() ? plan.automem->tier_bytes[memory::tier("disk")] : 0;
  const std::string warning = disk_warning(disk, run_folder, 0, double(tier) * plan.place.ranks_on_node);
  const std::string snapshots =
      disk.snapshot_bytes == 0 ? "" : ", snapshots " + format_bytes(size_t(disk.snapshot_bytes));
  return fmt::format("  checkpoint   {}; up to {:.0f} at a time take {}{}{}\n{}",
                     format_bytes(size_t(disk.checkpoint_bytes)), disk.kept,
                     format_bytes(size_t(disk.checkpoint_bytes * disk.kept)), snapshots,
                     space ? fmt::format(", of {} free in {}", format_bytes(size_t(*space)), run_folder) : "",
                     warning.empty() ? "" : "               " + warning + "\n");
}

int nodes_of(const RunPlan& plan) {
  return (plan.world_size + plan.place.ranks_on_node - 1) / plan.place.ranks_on_node;
}

constexpr double kWorthDividing_s = 0.2;      // of shorter steps, communication would take much of what nodes save
constexpr int64_t kMostLoaderThreads = 1024;  // as the key's range

// Of fewer samples at once the number with the shortest step, and its time: less memory for each part leaves room for
// activations that train.recompute: auto gives up.
std::pair<int64_t, double> fewer_at_once(const RunPlan& plan, const MachineRates& rates, const Loading& loading) {
  std::pair<int64_t, double> best = {plan.micro_batch, std::numeric_limits<double>::infinity()};
  config::Config c = plan.config;
  RankPlace place = plan.place;
  place.recompute_degree.reset();
  const auto clusters = int64_t(place.cluster_sizes.size());
  for (int64_t n = plan.micro_batch - 1; n > 0; --n) {
    if (plan.samples % n != 0 || n % clusters != 0) continue;
    c.train.micro_batch = n;
    const RunPlan parts = plan_run(c, plan.world_size, place, {}, plan.facts);
    if (const double s = predict_step(parts, rates, loading).total_s(); s < best.second) best = {n, s};
  }
  return best;
}

// Settings that shorten the run, with the time of a step that they would give.
std::string what_shortens(const RunPlan& plan, const MachineRates& rates, const MachineRates* bf16,
                          const Loading& loading, double steps_s, double beside_s) {
  const double step_s = predict_step(plan, rates, loading).total_s();
  std::string text;
  const auto add = [&](const std::string& what) {
    text += (text.empty() ? "  shorter      " : "               ") + what + "\n";
  };
  if (bf16 != nullptr)
    if (const double s = predict_step(plan, *bf16, loading).total_s(); s < 0.95 * step_s)
      add(fmt::format("--set train.precision=bf16: {:.3g} s per step", s));
  RunPlan less = plan;
  less.config.train.recompute = nn::Recompute::kSelective;
  if (plan.config.train.recompute) {
    if (const double s = predict_step(less, rates, loading).total_s(); s < 0.95 * step_s)
      add(fmt::format("--set train.recompute=selective: {:.3g} s per step, with more memory", s));
  } else if (!plan.automem && !plan.config.dist.reproducible) {  // there it would change bits
    if (const auto [at_once, s] = fewer_at_once(plan, rates, loading); s < 0.95 * step_s)
      add(fmt::format("--set train.micro_batch={}: {:.3g} s per step, as fewer activations are computed again", at_once,
                      s));
  }
  RunPlan loads = plan;
  loads.config.data.loader_threads *= 2;
  const bool is_allowed = loads.config.data.loader_threads <= kMostLoaderThreads;
  if (const double s = predict_step(loads, rates, loading).total_s(); is_allowed && s < 0.95 * step_s)
    add(fmt::format("--set data.loader_threads={}: {:.3g} s per step", loads.config.data.loader_threads, s));
  if (const config::Config& c = plan.config; beside_s > 0.2 * steps_s) {
    std::string fewer;
    const auto name = [&](int64_t every, const char* what) {
      if (every > 0) fewer += (fewer.empty() ? "fewer or smaller " : "; ") + std::string(what);
    };
    name(c.sample.every_steps, "sample grids: sample.every_steps, sample.num_images");
    name(c.eval.every_steps, "validations: eval.every_steps, eval.num_images");
    name(c.eval.fid_every_steps, "distances: eval.fid_every_steps, eval.fid_samples");
    add(fewer);
  }
  if (plan.samples > 1 && step_s >= kWorthDividing_s && nodes_of(plan) == 1)
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

// What is left of the times of a kind after the time of jobs, that of the tiny model.
double seconds(const Measured& measured, const Measured& tiny, WorkKind kind) {
  return std::max(0.0, measured.times[kind] - tiny.times[kind]);
}

WorkerRates rates_with(parallel::Team& team, DType precision) {
  const Measured tiny = measure(team, kTiny, precision), narrow = measure(team, kNarrow, precision),
                 wide = measure(team, kWide, precision);
  const StepWork &n = narrow.work, &w = wide.work;
  const double workers = team.num_workers();
  const auto of = [&](const Measured& m, WorkKind kind) { return workers * seconds(m, tiny, kind); };
  WorkerRates rates;
  std::tie(rates.gemm_s, rates.gemm_per_width_s) =
      line_through(n.gemm_flop, n.gemm_flop_per_width, of(narrow, WorkKind::kProduct), w.gemm_flop,
                   w.gemm_flop_per_width, of(wide, WorkKind::kProduct));
  std::tie(rates.attention_mac_s, rates.attention_value_s) =
      line_through(n.attention_macs, n.attention_values, of(narrow, WorkKind::kAttention), w.attention_macs,
                   w.attention_values, of(wide, WorkKind::kAttention));
  rates.value_s = of(wide, WorkKind::kElementwise) / w.values;
  rates.input_s = measure_noise(team);
  rates.parameter_s =
      (of(wide, WorkKind::kOptimizer) + workers * std::max(0.0, wide.norm_s - tiny.norm_s)) / w.parameters;
  rates.pass_s = tiny.total_s / double(kDepth);
  double jobs_s = 0;
  for (const double s : wide.times.working_s) jobs_s += s;
  rates.overhead = std::max(1.0, wide.total_s / jobs_s);
  rates.update_factor = measure_update_factor(team, precision, rates);
  return rates;
}

}  // namespace

StepWork work_of(const RunPlan& plan) {
  nn::Model model(plan.config.model);
  const double all = double(model.parameters().num_parameters()), sharing = double(plan.world_size / plan.replicas);
  const bool shards = plan.config.dist.shard_optimizer;
  StepWork work = work_of_step(plan.config, double(plan.samples), all / (shards ? plan.replicas : 1) / sharing);
  for (double* count : {&work.gemm_flop, &work.gemm_flop_per_width, &work.attention_macs, &work.attention_values})
    *count /= sharing;
  work.passes *= double(plan.samples / plan.micro_batch);
  const UpdateProducts products =
      products_of_update(plan.config.optimizer, model.parameters().in_arena(), plan.config.train.precision);
  const double share = shards ? std::max(1.0 / plan.replicas, products.largest_share) : 1;
  work.update_flop = share * products.flop, work.update_flop_per_width = share * products.flop_per_width;
  work.summed = plan.gradients.replicas > 1 ? all / sharing : 0;
  if (plan.gradients.groups > 1) work.summed += all / double(plan.config.dist.outer->every);
  return work;
}

MachineRates measure_rates(parallel::Team& team, DType precision) {
  parallel::Team one({.num_workers = 1});
  MachineRates rates{.alone = rates_with(one, precision), .in_team = {}};
  const DType type = kernels::measure_fma_peak(precision, 1e-4) > 0 ? precision : DType::kF32;
  rates.alone.overhead *= std::max(1.0, peak_alone(type) / peak_of_each(team, type));
  rates.in_team = team.num_workers() > 1 ? rates_with(team, precision) : rates.alone;
  rates.alone.parameter_s = rates.in_team.parameter_s * rates.in_team.overhead / rates.alone.overhead;
  return rates;
}

Loading measure_loading(const dataset::Dataset& data) {
  constexpr int64_t kSamples = 32;
  constexpr double kLongestCpu_s = 0.5, kLongest_s = 2;
  std::vector<float> sample(size_t(data.shape().elements()));
  Condition condition;
  Loading loading;
  const double cpu_start_s = cpu_time_s(), start_s = now_s();
  int64_t read = 0;
  for (int64_t i = 0; i < kSamples; ++i) {
    try {
      data.load(i * data.size() / kSamples, false, sample.data(), &condition);
      ++read;
    } catch (const InputError& error) {
      loading.problem = error.what();
    }
    if (cpu_time_s() - cpu_start_s > kLongestCpu_s || now_s() - start_s > kLongest_s) break;
  }
  if (read > 0) loading.sample_s = (cpu_time_s() - cpu_start_s) / double(read);
  return loading;
}

void share_cores(MachineRates& rates, double workers_per_core) {
  for (WorkerRates* r : {&rates.alone, &rates.in_team}) r->overhead *= workers_per_core, r->pass_s *= workers_per_core;
}

const WorkerRates& MachineRates::of(const RunPlan& plan) const {
  const std::vector<int>& sizes = plan.place.cluster_sizes;
  return std::any_of(sizes.begin(), sizes.end(), [](int workers) { return workers > 1; }) ? in_team : alone;
}

StepTime predict_step(const RunPlan& plan, const MachineRates& of_machine, const Loading& loading) {
  const StepWork work = work_of(plan);
  const WorkerRates& rates = of_machine.of(plan);
  const double factor = rates.overhead / plan.place.workers(), of_pass = factor * share_of_work(plan.config);
  const double update_products_s =
      factor * rates.update_factor *
      (work.update_flop * rates.gemm_s + work.update_flop_per_width * rates.gemm_per_width_s);
  StepTime time{.gemm_s = of_pass * (work.gemm_flop * rates.gemm_s + work.gemm_flop_per_width * rates.gemm_per_width_s),
                .attention_s = of_pass * (work.attention_macs * rates.attention_mac_s +
                                          work.attention_values * rates.attention_value_s),
                .values_s = of_pass * work.values * rates.value_s + factor * work.inputs * rates.input_s,
                .jobs_s = work.passes * rates.pass_s,
                .update_s = factor * work.parameters * rates.parameter_s + update_products_s,
                .sums_s = factor * work.summed * rates.parameter_s * kPassesOfSum / kPassesOfUpdate,
                .update_products_s = update_products_s};
  const double threads = double(plan.config.data.loader_threads), loading_s = double(plan.samples) * loading.sample_s;
  if (loading.cores == 0)
    time.loading_s = loading_s / std::min(threads, double(plan.place.workers()));
  else
    time.loading_s = std::max(0.0, loading_s / std::min(threads, double(loading.cores)) - time.total_s());
  return time;
}

std::string describe_time(const RunPlan& plan, const MachineRates& rates, const MachineRates* bf16,
                          const std::string& run_folder, const Loading& loading, int64_t done) {
  const config::Config& c = plan.config;
  const StepTime step = predict_step(plan, rates, loading);
  const int64_t steps = std::max<int64_t>(0, c.train.steps - done);
  const double step_s = step.total_s(), steps_s = step_s * double(steps);
  const double beside_s = predict_evaluation(plan, step, done);
  const auto share = [&](double part_s) { return 100 * part_s / step_s; };
  std::string text = fmt::format(
      "time, predicted from rates of this machine that were measured now:\n"
      "  step         {:.3g} s, {:.4g} images/s: GEMMs {:.0f} %, attention {:.0f} %, other passes {:.0f} %, starting "
      "threads {:.0f} %, update {:.0f} %, all-reduce {:.0f} %, loading {:.0f} %\n"
      "  {:<11}  {}, and {} of samples and validation\n",
      step_s, double(c.train.global_batch) / step_s, share(step.gemm_s), share(step.attention_s), share(step.values_s),
      share(step.jobs_s), share(step.update_s), share(step.sums_s), share(step.loading_s),
      fmt::format("{} steps", steps), format_duration(steps_s), format_duration(beside_s));
  if (nodes_of(plan) > 1)
    text += fmt::format(
        "               messages between the nodes are not counted: ditrain plan --platform FILE --nodes {}\n",
        nodes_of(plan));
  if (loading.sample_s == 0) text += "               loading samples is not counted\n";
  if (!c.data.vae.empty())
    text += "               encoding images (data.vae) is not counted: ditbench vae measures it\n";
  return text + describe_checkpoints(plan, run_folder) + what_shortens(plan, rates, bf16, loading, steps_s, beside_s);
}

namespace {

// Multiply-adds for features and distance: what ranks share, what the workers of rank 0 share, what one of them does.
struct DistanceWork {
  double of_ranks = 0, of_rank = 0, of_worker = 0;
};

DistanceWork work_of_distance(const config::Config& c) {
  const bool inception = c.eval.features == config::FidFeatures::kInception;
  dataset::SampleShape shape = model_shape(c.model);
  if (!c.sample.vae.empty()) shape = {3, 8 * shape.height, 8 * shape.width};  // as most autoencoders decode
  const auto kind = inception ? eval::FeatureKind::kInception : eval::FeatureKind::kPixels;
  const auto n = double(c.eval.fid_samples), d = double(eval::dimensions_of(kind, shape)), least = std::min(n, d);
  // eval/frechet.hpp. Products in f64 have half the rate; decompositions take some 20 multiply-adds of products for
  // each of theirs (ditfid with statistics of 3,072 pixels: 18 s on a core of Zen 3).
  constexpr double kInceptionMacs = 5.7e9, kDecomposition = 20;
  return {.of_ranks = inception ? n * kInceptionMacs : 0,
          .of_rank = 2 * (n * d * d + (n <= d ? n * n * d : 2 * d * d * d)),
          .of_worker = kDecomposition * least * least * least};
}

}  // namespace

EvaluationPasses evaluation_passes(const RunPlan& plan) {
  const config::Config& c = plan.config;
  double of_sample = 0;
  if (config::draws_samples(c)) {
    const diffusion::SamplerConfig sampler = config::sampler_of(c);
    const auto process = diffusion::make_process(c.diffusion, c.model.learn_sigma);
    of_sample = double(diffusion::model_times(*process, sampler).size()) * (sampler.cfg_scale != 1 ? 2 : 1);
  }
  const DistanceWork work = work_of_distance(c);
  const int workers = plan.place.workers();
  const double of_rank = work.of_rank + work.of_worker * double(workers);
  const double distance = (work.of_ranks + of_rank * double(plan.replicas)) / nn::forward_macs(c.model);
  return {.samples = of_sample * double(c.sample.num_images),
          .validation = double(c.eval.num_images) * (c.model.num_classes > 1 ? 2 : 1),
          .distance = of_sample * double(c.eval.fid_samples) + distance};
}

double forward_s(const RunPlan& plan, double step_s) {
  const config::Config& c = plan.config;
  // Samples take no routes.
  const double more = nn::forward_macs(c.model) / nn::forward_macs(c.model, c.train.routing);
  return more * step_s / 3 / double(plan.samples);
}

double predict_evaluation(const RunPlan& plan, const StepTime& step, int64_t done) {
  const config::Config& c = plan.config;
  const EvaluationPasses passes = evaluation_passes(plan);
  const auto times = [&](int64_t every) {  // at multiples, and at the end
    return every == 0 || done >= c.train.steps
               ? 0.0
               : std::ceil(double(c.train.steps) / double(every)) - double(done / every);
  };
  return (times(c.sample.every_steps) * passes.samples + times(c.eval.every_steps) * passes.validation +
          times(c.eval.fid_every_steps) * passes.distance) *
         forward_s(plan, step.compute_s()) / double(plan.replicas);
}

}  // namespace ditrain::plan
