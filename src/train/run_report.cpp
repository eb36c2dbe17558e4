#include "run_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/config/agreement.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/platform/limits.hpp"
#include "ditrain/train/run_summary.hpp"
#include "ditrain/version.hpp"

namespace ditrain::train {
namespace {

constexpr size_t kNamedClasses = 20;

constexpr double kMaxMfu = 1.02;  // a step that beats the measured peak says that it was measured too low

// How to start another program of this build from here: by its name if the shell finds this one, else by its path.
std::string command_beside(const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  const char* path = std::getenv("PATH");
  if ((":" + std::string(path ? path : "") + ":").find(":" + folder.string() + ":") != std::string::npos) return name;
  const std::string near = fs::proximate(folder / name, ignored).string();
  return near.empty() || near.starts_with("..") ? (folder / name).string() : near;
}

}  // namespace

RunReport::RunReport(RunContext& run)
    : heartbeat(run.leader() ? run.config.log.every_seconds : 0),
      run_(run),
      trace_(run.options.trace.has_value(), run.comm.rank()),
      flop_per_image_(6.0 * nn::forward_macs(run.config.model, run.config.train.routing)) {}

void RunReport::tell_start(const dataset::Dataset& data, const std::string& resumed) {
  const config::Config& config = run_.config;
  const std::string machine = describe(run_.placement, run_.comm) + "kernels: " + kernels::chosen_isa() + "\n" +
                              kernels::dispatch_report() + run_.products + "\n" + "cut: " + run_.plan.cut.why + "\n";
  const std::string memory =
      describe(run_.plan.memory) + (run_.plan.automem ? automem::describe(*run_.plan.automem) : "");
  log::info("ditrain {}: {} -> {}", kVersion, resumed.empty() ? "new run" : "resuming " + resumed, run_.options.out);
  log::detail_lines(machine + run_.settled.describe() + memory);
  log::info("ranks: {} on {} node(s), {} thread(s) each, {} kernels, {} of memory planned per rank",
            run_.comm.world_size(), run_.comm.num_nodes(), run_.team.num_workers(), kernels::chosen_isa(),
            format_bytes(run_.plan.memory.total()));
  if (!run_.placement.second_run.empty()) log::info("{}", run_.placement.second_run);
  log::info_lines(plan::describe_model(config));
  if (run_.leader())
    for (const std::string& warning : config::warnings(config)) log::warn_line(warning);
  log::info("data: {}", data.describe());
  if (run_.leader())
    for (const std::string& warning : data.warnings()) log::warn("data: {}", warning);
  if (const auto& names = data.class_names(); !names.empty() && names.size() <= kNamedClasses)
    log::info("classes, from 0 on: {}", fmt::join(names, ", "));
  if (const std::string part = data.describe_part(); !part.empty()) log::info("data: {}", part);
  if (const std::string unused = data.describe_unused(config.model.num_classes); run_.leader() && !unused.empty())
    log::warn("data: there are no samples of {}", unused);
  if (config.sample.cfg_scale != 1 && config::draws_samples(config) && config.model.num_classes == 0 &&
      config.model.metadata.empty() && config.sample.guide.empty())
    log::info("guidance is off: sample.cfg_scale {} needs labels, and the model has none (model.num_classes: 0)",
              config.sample.cfg_scale);
  if (const std::string ignored = data.describe_ignored(); !ignored.empty()) log::info("data: {}", ignored);
  if (const std::string lost = data.describe_unlearnt(config.model.num_classes); !lost.empty())
    log::info("data: {}", lost);
  topology_ = machine + run_.settled.describe() + memory;
  if (run_.plan.automem) topology_ += automem::describe_copying(*run_.plan.automem);
  for (int i = 0; i < 3; ++i) measure_peak();
  log::detail("FMA peak ({}) of {} thread(s): {:.1f} GFLOP/s", dtype_name(run_.peak_type),
              run_.comm.world_size() * run_.team.num_workers(), peak_flops_ * 1e-9);
  samples_of_data_ = data.size();
  const config::TrainConfig& t = config.train;
  log::info("steps: {} of {} samples = {:.2f} epochs", t.steps, t.global_batch,
            double(t.steps * t.global_batch) / double(samples_of_data_));
  log::info("machine, threads and memory plan: {}/topology.txt", run_.options.out);
}

// The highest of all measurements counts: other programs on the machine can only lower one.
void RunReport::measure_peak() {
  constexpr double kSeconds = 0.02;
  std::vector<double> flops(size_t(run_.team.num_workers()));
  run_.team.run([&](const parallel::Worker& w) {
    flops[size_t(w.worker)] = kernels::measure_fma_peak(run_.peak_type, kSeconds);
  });
  double peak = 0;
  for (double f : flops) peak += f;
  run_.comm.allreduce_sum(&peak, 1);
  peak_flops_ = std::max(peak_flops_, peak);
  last_mfu_ = 0;
}

double RunReport::expected_step_s() const {
  if (recent_step_s_ > 0 || peak_flops_ == 0) return recent_step_s_;
  return flop_per_image_ * double(run_.config.train.global_batch) / peak_flops_;
}

bool RunReport::beats_peak() const { return last_mfu_ > kMaxMfu; }

void RunReport::refuse_fallbacks(const std::string& notes) const {
  throw InputError({.where = "strict", .what = "fallbacks are not allowed with --strict:\n" + notes});
}

void RunReport::tell_fallbacks() {
  for (const std::string& failure : run_.team.binding_failures()) run_.note(failure);
  std::string mine, all;
  for (const std::string& note : run_.placement.notes) mine += note + "\n";
  const uint64_t any = run_.comm.allreduce_or(mine.empty() ? 0 : 1);
  for (const auto& [note, ranks] : run_.lines_of_ranks(mine)) {
    all += "note: " + run_.of_ranks(note, ranks) + "\n";
    log::warn_line(run_.of_ranks(note, ranks));
  }
  if (run_.options.strict && any != 0) refuse_fallbacks(run_.leader() ? all : mine);
  topology_ += all;
}

void RunReport::begin_loop(TrainingState& state, RunFolder* folder) {
  state_ = &state, folder_ = folder;
  first_step_ = state.progress.step;
  trace_.watch(state.step.tape());
  watch_layers();
  trace_.start(run_.comm);
  if (folder != nullptr) open_live(first_step_);
  loop_start_s_ = now_s();
}

void RunReport::open_live(int64_t first_step) {
  const config::Config& config = run_.config;
  live_.emplace(report::LiveOptions{.folder = run_.options.out,
                                    .first_step = first_step,
                                    .steps = config.train.steps,
                                    .tensorboard = config.log.tensorboard,
                                    .prometheus = config.log.prometheus,
                                    .build = config::build_name()});
}

// For lines within long steps.
void RunReport::watch_layers() {
  if (!run_.leader() || run_.config.log.every_seconds == 0) return;
  using autograd::HookPoint;
  const auto tell = [this](const char* pass) {
    return [this, pass](const autograd::Node& node) {
      heartbeat.detail(fmt::format("micro-batch {} of {}, {} of {}", state_->step.micro_batch() + 1,
                                   run_.plan.samples / run_.plan.micro_batch, pass, node.name()));
    };
  };
  state_->step.tape().add_hook(HookPoint::kPreForward, tell("forward"));
  state_->step.tape().add_hook(HookPoint::kPreBackward, tell("backward"));
}

StepMetrics RunReport::metrics_of(const StepResult& result, const PhaseLog& waited, double start_s) {
  const double step_s = now_s() - start_s;
  recent_step_s_ = recent_step_s_ == 0 ? step_s : 0.9 * recent_step_s_ + 0.1 * step_s;
  steps_s_ += step_s;
  StepMetrics m;
  m.seconds.add(waited.seconds), m.seconds.add(result.log.seconds);
  std::vector<PhaseSpan> spans = std::exchange(off_step.spans, {});
  for (const PhaseLog* log : {&waited, &result.log}) spans.insert(spans.end(), log->spans.begin(), log->spans.end());
  const StepFacts& facts = result.facts;
  m.step = state_->progress.step, m.loss = facts.loss, m.mse = facts.mse, m.vb = facts.vb;
  m.lr = result.lr, m.grad_norm = result.grad_norm, m.non_finite = result.non_finite;
  m.images_per_second = double(run_.config.train.global_batch) / step_s;
  m.tflops = flop_per_image_ * m.images_per_second * 1e-12;
  m.mfu = m.tflops * 1e12 / peak_flops_;
  last_mfu_ = m.mfu;
  m.cpu_seconds = facts.cpu_seconds;
  if (run_.config.train.layer_sync) m.extra["layer_sync_cosine"] = facts.layer_cosine;
  m.skipped_steps = state_->progress.skipped_steps, m.bad_files = int64_t(facts.bad_files);
  m.allreduce_hidden_s = result.allreduce_hidden_s, m.allreduce_bytes = result.allreduce_bytes;
  interval_.add(m, step_s);
  trace_.add_step(m.step, start_s, spans, state_->step.sync().communication().buckets);
  return m;
}

// Beside steps there are samples, validation and checkpoints.
double RunReport::left_s(int64_t step) const {
  const auto done = double(std::max<int64_t>(1, step - first_step_));
  const double beside_s = std::max(0.0, now_s() - loop_start_s_ - steps_s_) / done;
  return (recent_step_s_ + beside_s) * double(run_.config.train.steps - step);
}

void RunReport::write_step(StepMetrics& m) {
  const dist::NodeMemory* gradients = state_->gradient_memory.get();
  m.seconds.add(std::exchange(off_step.seconds, {}));
  m.rss_bytes = platform::resident_bytes();
  m.bulk_peak_bytes = memory::system_memory().peak_bytes() + (gradients ? gradients->peak_bytes() : 0);
  if (state_->automem) add_automem(m);
  total_.add(m.seconds);
  hidden_s_ += m.allreduce_hidden_s;
  if (!run_.leader()) return;
  const dist::DiskWork writes(run_.comm);
  folder_->append_metrics(m);
  live_->step(m.step, left_s(m.step));
}

void RunReport::tell_step(StepMetrics& m, bool last) {
  write_step(m);
  const automem::AutoMem* automem = state_->automem.get();
  if ((automem == nullptr || automem->is_settled() || last) && !std::exchange(told_pages_, true)) tell_pages();
  if (!run_.leader()) return;
  const bool by_steps = m.step % std::max<int64_t>(1, run_.config.log.every_steps) == 0;
  if (!by_steps && !last && !heartbeat.is_due(/*ahead_s=*/recent_step_s_)) return;
  heartbeat.told();
  const int64_t total = run_.config.train.steps;
  const dist::DiskWork terminal(run_.comm, dist::DiskWork::Kind::kWaits);
  log::progress_line(progress_text(
      interval_.take(m), {.steps = total,
                          .epoch = double(m.step) * double(run_.config.train.global_batch) / double(samples_of_data_),
                          .elapsed_s = now_s() - loop_start_s_,
                          .left_s = left_s(m.step)}));
}

// Collective, once pages are in use: what the system says of them, each line once for all ranks that say so.
void RunReport::tell_pages() {
  const dist::NodeMemory* gradients = state_->gradient_memory.get();
  const automem::AutoMem* automem = state_->automem.get();
  std::string text, late, all;
  if (gradients) text += fmt::format("gradients in the {}: {}\n", gradients->name(), gradients->describe_pages());
  if (automem) text += automem->describe_places();
  for (const auto& [line, ranks] : run_.lines_of_ranks(text)) log::detail_line(run_.of_ranks(line, ranks));
  for (const std::string& note : automem ? automem->late_notes() : std::vector<std::string>()) late += note + "\n";
  if (run_.comm.allreduce_or(late.empty() ? 0 : 1) == 0) return;
  for (const auto& [note, ranks] : run_.lines_of_ranks(late)) {
    log::warn_line(run_.of_ranks(note, ranks));
    all += "note: " + run_.of_ranks(note, ranks) + "\n";
  }
  if (run_.options.strict) refuse_fallbacks(run_.leader() ? all : late);
}

void RunReport::add_automem(StepMetrics& m) {
  automem::AutoMem& automem = *state_->automem;
  const automem::ResidencyTotals now = automem.totals();
  m.fast_peak_bytes = automem.fast_peak_bytes();
  m.bulk_peak_bytes -= std::min(m.bulk_peak_bytes, automem.beside_bytes());  // which its allocators count as well
  for (size_t i = 0; i < memory::kTiers.size(); ++i) {
    m.tier_bytes[i] = automem.tier_bytes(i);
    if (memory::kTiers[i].in_memory) m.bulk_peak_bytes += m.tier_bytes[i];
  }
  m.automem = {{"bytes_in", now.bytes_in - moved_.bytes_in},
               {"bytes_out", now.bytes_out - moved_.bytes_out},
               {"stall_s", now.stall_s - moved_.stall_s},
               {"late", double(now.late - moved_.late)},
               {"predicted_s", automem.plan().forecast.step_s}};
  for (size_t i = 0; i < memory::kTiers.size(); ++i) {
    if (m.tier_bytes[i] == 0) continue;
    const memory::TierTotals copied = automem.engine().totals_of(i);
    for (const auto& [direction, word] : {std::pair{memory::Direction::kIn, "in"}, {memory::Direction::kOut, "out"}}) {
      double& before = copied_[i][size_t(direction)];
      const double bytes = copied[size_t(direction)].bytes;
      m.automem[fmt::format("{}_bytes_{}", memory::kTiers[i].name, word)] = bytes - before;
      before = bytes;
    }
  }
  moved_ = now;
  for (const memory::CopySpan& span : automem.engine().take_spans())
    trace_.add(span.name, "copy", span.begin_s, span.end_s,
               span.direction == memory::Direction::kIn ? Lane::kCopyIn : Lane::kCopyOut);
}

// Collective: time in all-reduces.
void RunReport::tell_sums() {
  dist::Communicator& comm = run_.comm;
  const double ranks = double(comm.world_size());
  const double in_group = run_.groups.tensor() ? run_.groups.tensor()->summing_s() : 0;
  if (state_->step.sync().engine()) {
    double seconds[2] = {hidden_s_, total_[Phase::kAllreduceExposed] - in_group};
    comm.allreduce_sum(seconds, 2);
    const double all = seconds[0] + seconds[1];
    log::info(
        "all-reduce of gradients, mean per rank: {:.2f} s hidden behind backward, {:.2f} s waited for ({:.0f} % "
        "hidden)",
        seconds[0] / ranks, seconds[1] / ranks, all > 0 ? 100 * seconds[0] / all : 0);
  }
  if (!run_.groups.tensor()) return;
  double seconds = in_group;
  comm.allreduce_sum(&seconds, 1);
  log::info("all-reduce of activations between ranks that share a replica, mean per rank: {:.2f} s waited for",
            seconds / ranks);
}

void RunReport::tell_end(const std::vector<int64_t>& bad_samples) {
  dist::Communicator& comm = run_.comm;
  std::set<std::string> bad_files;  // a sample that several ranks have met is one
  for (const std::string& of_rank : comm.gather_strings(fmt::format("{}", fmt::join(bad_samples, " ")))) {
    std::istringstream words(of_rank);
    bad_files.insert(std::istream_iterator<std::string>(words), {});
  }
  total_.add(off_step.seconds);
  const double wall = now_s() - loop_start_s_;
  log::info_lines(phase_table(total_, wall, comm));
  const RunSummary summary = summarise({.total = total_,
                                        .wall_s = wall,
                                        .steps = state_->progress.step - first_step_,
                                        .threads = run_.placement.threads,
                                        .comm_shares_cores = comm.world_size() > 1 && run_.placement.comm_pus.empty()},
                                       comm);
  log::info_lines(load_line(summary));
  tell_sums();
  double peak = double(platform::peak_resident_bytes());
  comm.allreduce_max(&peak, 1);
  log::info("steps skipped: {}   bad files: {}   largest peak resident memory of any rank: {}",
            state_->progress.skipped_steps, bad_files.size(), format_bytes(size_t(peak)));
  for (const std::string& line : advice(summary, run_.config)) log::info("advice: {}", line);
}

// Where the results lie, and what one does with them next.
void RunReport::tell_results(bool done) {
  const std::string& out = run_.options.out;
  if (const auto grids = report::sample_grids(out); !grids.empty()) log::info("samples: {}", grids.rbegin()->second);
  log::info("report: {}", live_->page_path());
  const bool decodes = config::learns_pixels(run_.config) || !run_.config.sample.vae.empty();
  const nn::ModelConfig& m = run_.config.model;
  // What no training sample lacked has to be given.
  const bool numbers = !m.metadata.empty() && m.metadata_drop == 0;
  const bool label = m.condition_channels > 0 && m.num_classes > 0 && m.class_dropout == 0;
  if (done && files::count_checkpoints(run_.checkpoints()) > 0)
    log::info("next: {} --checkpoint {} --out {}{}{}{}{}", command_beside("ditsample"), quoted_word(out),
              quoted_word(out + "/images"), decodes ? "" : " --vae FILE",
              m.condition_channels > 0 ? " --condition FILE" : "", label ? " --labels 0" : "",
              numbers ? " --metadata " + m.metadata.front() + "=VALUE,..." : "");
  if (!done) log::info("next: the same command with --resume auto");
}

void RunReport::tell_outcome(int exit_code) {
  if (!live_) return;
  const bool done = exit_code == kExitDone;
  tell_results(done);
  live_->end(done ? report::RunState::kFinished : report::RunState::kStopped,
             done ? "all steps are done" : "a signal or --maxh asked for it; a checkpoint is written");
}

void RunReport::tell_failure(const std::string& why) {
  if (!run_.leader() || std::exchange(told_failure_, true)) return;
  log::error_into_file(why);
  try {
    if (!live_) {  // the start has failed: the steps of the run are those that it had before
      report::RunFiles before(run_.options.out);
      before.read_on();
      open_live(std::max<int64_t>(0, before.last_step()));
    }
    live_->end(report::RunState::kFailed, why);
  } catch (const Error& e) {  // what has ended the run is what its user has to read
    log::warn("status.json does not say so: {}", e.what());
  }
}

void RunReport::write_trace() {
  if (!run_.options.trace) return;
  trace_.add_phases(off_step.spans);
  const std::string path = run_.options.trace->empty() ? run_.options.out + "/trace.json" : *run_.options.trace;
  try {
    trace_.write(path, run_.comm);
    log::info("trace: {}", path);
  } catch (const RunError& e) {  // rank 0, when the others have nothing more to send; the run itself is whole
    log::warn("the trace is not written: {}", e.what());
  }
}

}  // namespace ditrain::train
