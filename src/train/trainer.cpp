#include "ditrain/train/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "ditrain/base/bytes.hpp"
#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/checkpoint/checkpoint.hpp"
#include "ditrain/checkpoint/saver.hpp"
#include "ditrain/config/agreement.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/io/checkpoint_folder.hpp"
#include "ditrain/io/files.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/kernels/measure.hpp"
#include "ditrain/plan/inputs.hpp"
#include "ditrain/plan/kernel_settings.hpp"
#include "ditrain/plan/memory_check.hpp"
#include "ditrain/plan/rank_groups.hpp"
#include "ditrain/plan/run_plan.hpp"
#include "ditrain/platform/affinity.hpp"
#include "ditrain/platform/limits.hpp"
#include "ditrain/platform/signals.hpp"
#include "ditrain/train/evaluation.hpp"
#include "ditrain/train/replicas.hpp"
#include "ditrain/train/run_folder.hpp"
#include "ditrain/train/run_summary.hpp"
#include "ditrain/train/trace.hpp"
#include "ditrain/train/train_step.hpp"
#include "ditrain/version.hpp"

namespace ditrain::train {
namespace {

namespace fs = std::filesystem;

constexpr double kPatience_s = 30;  // for a run that is ending when --resume auto comes
constexpr double kMaxMfu = 1.02;    // a step that beats the measured peak says that it was measured too low

// The run folder that a checkpoint folder belongs to, RUN/checkpoints/step_N.
fs::path run_of(const std::string& checkpoint) {
  return fs::weakly_canonical(fs::path(checkpoint) / "state.json").parent_path().parent_path().parent_path();
}

// In this scope: seconds a rank waits for the others, whichever of them it talks to; 0 waits for ever.
class PatienceScope {
 public:
  PatienceScope(dist::Communicator& all, plan::RankGroups& groups, double seconds)
      : all_(all, seconds), data_(groups.data(), seconds) {
    if (groups.tensor() != nullptr) tensor_.emplace(groups.tensor()->communicator(), seconds);
  }

 private:
  dist::TimeoutScope all_, data_;
  std::optional<dist::TimeoutScope> tensor_;
};

/// All the state of one run; the functions below are its chapters.
class Run {
 public:
  Run(const config::Config& config, const TrainOptions& options, dist::Communicator& comm)
      : config_(config),
        options_(options),
        comm_(comm),
        start_s_(now_s()),
        placement_(plan::plan_placement(config, comm)),
        groups_(config, comm),
        team_(placement_.team()),
        ctx_(team_),
        plan_(make_plan()),
        model_(config.model, groups_.tensor_parallel()),
        step_(plan_, model_, groups_.data(), ctx_, groups_.tensor()),
        trace_(options.trace.has_value(), comm.rank()) {}

  int run();

 private:
  bool leader() const { return comm_.rank() == 0; }
  void open();
  plan::RunPlan make_plan();
  void start_report();
  void check_fallbacks();
  void check_same_start();
  void choose_kernels();
  void measure_peak();
  void allocate();
  void start_automem();
  void initialise_weights();
  void next_candidate();
  void pass_over(const std::string& folder, const std::string& why);
  void load_or_fall_back();
  void load_checkpoint();
  void begin_folder();
  double patience_s() const;
  int train_loop();
  StepMetrics one_step();
  bool after_step(StepMetrics& metrics, bool last);
  void agree_again();
  void report(StepMetrics& metrics, bool last);
  void report_automem(StepMetrics& metrics);
  void verify();
  StepFacts facts();
  void checkpoint(bool must_succeed);
  void advance_checkpoint();
  void judge(const std::optional<checkpoint::SaveOutcome>& outcome, bool must_succeed);
  void finish();

  const config::Config config_;
  const double flop_per_image_ = 6.0 * nn::forward_macs(config_.model);
  const TrainOptions& options_;
  dist::Communicator& comm_;
  double start_s_;
  plan::Placement placement_;
  std::string notes_, topology_;  // on rank 0: fallbacks and advice; the content of topology.txt
  std::string products_;          // what computes the matrix products
  plan::RankGroups groups_;
  std::unique_ptr<dist::NodeMemory>
      gradient_memory_;  // before the model, whose gradients live there; only of several ranks
  parallel::Team team_;
  ops::Context ctx_;
  const plan::RunPlan plan_;
  std::unique_ptr<automem::AutoMem> automem_;  // before what has its memory from it
  nn::Dit model_;
  TrainStep step_;
  Trace trace_;
  std::unique_ptr<dataset::Dataset> data_;
  std::optional<RunLock> lock_;          // on rank 0
  std::unique_ptr<RunFolder> folder_;    // on rank 0
  std::string resumed_;                  // checkpoint folder; "": a new run
  std::vector<std::string> candidates_;  // on rank 0: it, and those to fall back to
  std::unique_ptr<dataset::Loader> loader_;
  Progress progress_;
  PhaseLog beside_;      // beside the steps, since the last line of metrics: samples, checkpoints, comparisons
  StepFacts agreed_;     // of the last step, by all ranks
  double last_mfu_ = 0;  // of this rank
  std::unique_ptr<checkpoint::CheckpointSaver> saver_;
  double checkpoint_start_s_ = 0;
  automem::ResidencyTotals moved_;  // until the last line of metrics
  int64_t verified_step_ = -1;      // the last one after which the replicas were compared
  int64_t first_step_ = 0;          // of the loop
  double peak_flops_ = 0;           // of all ranks together
  DType peak_type_ = DType::kF32;
  double loop_start_s_ = 0, recent_step_s_ = 0, hidden_s_ = 0;
  PhaseTimes total_;
};

// With the bandwidth between NUMA domains, where clusters lie in several.
plan::RunPlan Run::make_plan() {
  const plan::RankPlace place = plan::place_of(placement_, comm_.local_size());
  const auto bandwidth = place.nodes.size() > 1 ? plan::measure_domains(ctx_) : plan::DomainBandwidth{};
  return plan::plan_run(config_, comm_.world_size(), place, bandwidth);
}

void Run::open() {
  plan::check_memory(plan_);
  if (config_.dist.engine && groups_.data().world_size() > 1) {
    gradient_memory_ =
        std::make_unique<dist::NodeMemory>(groups_.data(), size_t(model_.parameters().arena_size()) * sizeof(float));
    if (!gradient_memory_->note().empty()) placement_.notes.push_back(gradient_memory_->note());
  }
  data_ = plan::open_data(config_);
  if (leader()) {  // it alone decides, so that all ranks go on from the same place
    const bool named = !options_.resume.empty() && options_.resume != "auto";
    if (named) candidates_ = {checkpoint::find_checkpoint(options_.resume)};
    io::make_output_folder(options_.out);
    lock_.emplace(options_.out, options_.resume == "auto" ? kPatience_s : 0);
    if (!lock_->note().empty()) placement_.notes.push_back(lock_->note());
    if (!options_.resume.empty()) io::remove_stale_temporaries(options_.out + "/checkpoints");
    if (options_.resume == "auto") candidates_ = io::checkpoints_to_resume(options_.out + "/checkpoints");
    next_candidate();
    if (!resumed_.empty() && holds_run(options_.out) && run_of(resumed_) != fs::weakly_canonical(options_.out))
      throw InputError({.where = "output",
                        .what = options_.out + " holds another run than " + resumed_,
                        .expected = "the folder of the resumed run, or a new one"});
    folder_ = std::make_unique<RunFolder>(options_.out, !options_.resume.empty());
    log::open_file(options_.out + "/log.txt");
  }
  resumed_ = dist::broadcast_text(comm_, resumed_);
}

// On rank 0: the next checkpoint to start from whose state can be read and is of this config.
void Run::next_candidate() {
  for (resumed_.clear(); resumed_.empty() && !candidates_.empty();) {
    const std::string folder = candidates_.front();
    checkpoint::expect_readable(folder);
    checkpoint::CheckpointState state;
    try {
      state = checkpoint::read_checkpoint_state(folder);
    } catch (const InputError& e) {
      pass_over(folder, e.what());
      continue;
    }
    config::check_resume(config::parse_config(state.config_yaml, folder), config_);
    resumed_ = folder;
  }
}

// On rank 0: goes on to the candidate after a damaged one. Errors: InputError if it is the only one that was asked for,
// or the last.
void Run::pass_over(const std::string& folder, const std::string& why) {
  candidates_.erase(candidates_.begin());
  if (options_.resume != "auto") {
    const std::string intact = checkpoint::newest_intact_beside(folder);
    throw InputError(
        {.where = "resume",
         .what = folder + " is damaged: " + why,
         .hint = intact.empty() ? "another copy of the run: no checkpoint beside it is intact" : "--resume " + intact});
  }
  if (candidates_.empty())
    throw InputError({.where = "resume",
                      .what = "no checkpoint in " + options_.out + " is intact; the last one: " + why,
                      .hint = "--out with another folder, to start anew"});
  log::warn("{} is damaged and passed over: {}", folder, why);
}

// Collective. A checkpoint that any rank finds damaged is passed over.
void Run::load_or_fall_back() {
  while (!resumed_.empty()) {
    checkpoint::expect_readable(resumed_);  // a folder that this rank does not see is no damage
    std::string damage;
    try {
      load_checkpoint();
    } catch (const InputError& e) {
      damage = e.what();
    }
    std::string problem;
    if (leader())
      for (const std::string& of_rank : comm_.gather_strings(damage)) problem = problem.empty() ? of_rank : problem;
    else
      comm_.gather_strings(damage);
    problem = dist::broadcast_text(comm_, problem);
    if (problem.empty()) return;
    if (leader()) {
      pass_over(resumed_, problem);
      next_candidate();
    }
    resumed_ = dist::broadcast_text(comm_, resumed_);
  }
}

// What every rank read by itself: a folder that is not shared, or a copy of the data that is not complete.
void Run::check_same_start() {
  constexpr const char* kShare = "a file system that all nodes share";
  const bool writes = plan_.gradients.sharded || groups_.data().rank() == 0;
  const bool seen = !writes || fs::exists(options_.out + "/.lock");
  config::check_agreement(
      comm_, {{"starting point", fmt::format("step {}, {} samples", progress_.step, data_->size()), kShare},
              {"run folder", options_.out + (seen ? "" : ", which is not there"), kShare}});
}

// Collective: the notes of all ranks, each once. Call after allocation and pinning: all that can fall back has
// done so.
void Run::check_fallbacks() {
  if (config_.train.precision == DType::kBF16 && peak_type_ == DType::kF32)
    placement_.notes.push_back(
        "train.precision: bf16, but this CPU has no bf16 products: less memory, but f32 would be faster");
  for (const std::string& failure : team_.binding_failures()) placement_.notes.push_back(failure);
  std::string mine;
  for (const std::string& note : placement_.notes) mine += note + "\n";
  const uint64_t any = comm_.allreduce_or(mine.empty() ? 0 : 1);
  std::map<std::string, int> ranks_with;
  for (const std::string& notes : comm_.gather_strings(mine)) {
    std::istringstream lines(notes);
    for (std::string note; std::getline(lines, note);) ++ranks_with[note];
  }
  for (const auto& [note, ranks] : ranks_with) {
    const std::string text =
        comm_.world_size() == 1 ? note : fmt::format("{} of {} ranks: {}", ranks, comm_.world_size(), note);
    notes_ += "note: " + text + "\n";
    log::warn_line(text);
  }
  if (options_.strict && any != 0)
    throw InputError(
        {.where = "strict", .what = "fallbacks are not allowed with --strict:\n" + (leader() ? notes_ : mine)});
  topology_ += notes_;
}

void Run::start_report() {
  const std::string machine = describe(placement_, comm_) + "kernels: " + kernels::chosen_isa() + "\n" +
                              kernels::dispatch_report() + products_ + "\n" + "cut: " + plan_.cut.why + "\n";
  log::info("ditrain {}: {} -> {}", kVersion, resumed_.empty() ? "new run" : "resuming " + resumed_, options_.out);
  log::info_lines(machine);
  log::info_lines(plan::describe_model(config_));
  log::info_lines(describe(plan_.memory));
  if (plan_.automem) log::info_lines(automem::describe(*plan_.automem));
  log::info("data: {}", data_->describe());
  if (const std::string ignored = data_->describe_ignored(); !ignored.empty()) log::info("data: {}", ignored);
  topology_ = machine;
}

// The highest of all measurements counts: other programs on the machine can only lower one.
void Run::measure_peak() {
  constexpr double kSeconds = 0.02;
  std::vector<double> flops(size_t(team_.num_workers()));
  team_.run(
      [&](const parallel::Worker& w) { flops[size_t(w.worker)] = kernels::measure_fma_peak(peak_type_, kSeconds); });
  double peak = 0;
  for (double f : flops) peak += f;
  comm_.allreduce_sum(&peak, 1);
  peak_flops_ = std::max(peak_flops_, peak);
}

void Run::choose_kernels() {
  products_ = plan::apply_kernel_settings(config_, placement_.topology, placement_.pus, ctx_);
  const bool has_bf16 = kernels::measure_fma_peak(DType::kBF16, 1e-4) > 0;
  peak_type_ = has_bf16 ? config_.train.precision : DType::kF32;
}

void Run::allocate() {
  autograd::ParameterStore& parameters = model_.parameters();
  start_automem();
  const bool moves = automem_ != nullptr;
  parameters.allocate(autograd::ParameterStore::For::kTraining, config_.train.precision,
                      {.gradients = gradient_memory_.get(),
                       .state_elements = plan_.gradients.sharded ? step_.state_elements() : -1,
                       .segments = moves ? &automem_->source() : nullptr});
  const auto& p = parameters;
  std::vector<Tensor> shared{p.grads};
  if (!moves) shared.insert(shared.end(), {p.values, p.values_bf16});
  const std::string refusal = plan::spread_over_nodes(plan_.place.nodes, shared);
  if (!refusal.empty()) placement_.notes.push_back(refusal);
  step_.allocate(gradient_memory_.get(), placement_.comm_pus, automem_.get());
  checkpoint::OwnState mine{.parts = step_.sync().state().parts()};
  if (!plan_.gradients.sharded && groups_.data().rank() != 0) mine.parts.clear();  // the first replica writes
  if (!leader()) mine.frozen = false, mine.whole_parameters = plan_.gradients.sharded;
  saver_ = std::make_unique<checkpoint::CheckpointSaver>(
      checkpoint::CheckpointSaver::Setup{
          .checkpoints_dir = options_.out + "/checkpoints",
          .config = config_.checkpoint,
          .mine = mine,
          .buffer_bytes =
              mine.parts.empty() ? 0 : plan::checkpoint_buffer_bytes(config_.checkpoint, step_.state_elements()),
          .pus = placement_.helper_pus},
      model_.parameters(), comm_, ctx_);
  step_.sync().state().set_saver(saver_.get());
  const dist::Engine* engine = step_.sync().engine();
  if (engine == nullptr) return;
  log::info("{}", engine->description());
  log::info_lines(describe_factors(plan_.gradients, config_));
  if (!engine->binding_failure().empty()) placement_.notes.push_back(engine->binding_failure());
}

// Before the store and the tape, whose memory comes from it.
void Run::start_automem() {
  if (!plan_.automem) return;
  const config::MemoryConfig& m = config_.memory;
  automem_ = std::make_unique<automem::AutoMem>(
      *plan_.automem, automem::AutoMem::Setup{.pages = m.pages,
                                              .fast_nodes = plan_.place.fast_nodes,
                                              .bulk_node = plan_.place.bulk_node,
                                              .disk_folder = m.disk_path.empty() ? options_.out : m.disk_path,
                                              .copy_pus = placement_.copy_pus,
                                              .simulate = m.simulate_bulk});
  log::info_lines(automem_->describe());
  for (const std::string& note : automem_->notes()) placement_.notes.push_back(note);
  automem_->engine().record_spans(trace_.enabled());
}

void Run::initialise_weights() {
  autograd::ParameterStore& parameters = model_.parameters();
  nn::initialise(model_, uint64_t(config_.train.seed));
  if (const std::string& from = config_.train.init_from; !from.empty()) {
    checkpoint::load_weights(fs::is_regular_file(from) ? from : checkpoint::find_checkpoint(from) + "/ema.safetensors",
                             parameters, parameters.values, placement_.helper_pus);
    log::info("weights: {}", from);
  }
  step_.keep(parameters.values, parameters.ema);
}

void Run::load_checkpoint() {
  const checkpoint::CheckpointState state = checkpoint::read_checkpoint_state(resumed_);
  checkpoint::load_training_state(
      resumed_, model_.parameters(), [this](const Tensor& whole, const Tensor& state) { step_.keep(whole, state); },
      placement_.helper_pus);
  progress_ = {state.step, state.optimizer_step, state.skipped_steps};
  if (state.isa != kernels::chosen_isa())
    log::warn("the checkpoint was computed with {} kernels, this run uses {}: it may not continue bit for bit",
              state.isa, kernels::chosen_isa());
  const config::Config before = config::parse_config(state.config_yaml, resumed_);
  if (config_.train.precision == DType::kBF16 && before.kernels.fuse != config_.kernels.fuse)
    log::warn("kernels.fuse was {} before: in bf16 it moves roundings, so the run does not continue bit for bit",
              before.kernels.fuse);
  if (state.world_size != comm_.world_size())
    log::info("resuming a run of {} rank(s) on {}", state.world_size, comm_.world_size());
}

// Rank 0, once nothing can be refused any more: what an abandoned continuation left after this step goes aside.
void Run::begin_folder() {
  folder_->write("config.yaml", config::to_yaml(config_));
  folder_->write("topology.txt", topology_);
  const int64_t lines = discard_metrics_after(options_.out, progress_.step);
  if (lines > 0) log::info("{} line(s) after step {} moved to metrics.discarded.jsonl", lines, progress_.step);
  for (const std::string& aside : io::discard_checkpoints_after(folder_->checkpoints(), progress_.step))
    log::info("a checkpoint after step {} is now {}; {}", progress_.step, aside,
              config_.checkpoint.keep_discarded ? "it stays (checkpoint.keep_discarded)"
                                                : "it goes when the next one is whole");
}

StepMetrics Run::one_step() {
  const double start = now_s();
  PhaseLog waited;
  dataset::Batch batch;
  {
    const PhaseTimer timer(waited, Phase::kData);
    batch = loader_->next();
  }
  const double waited_before = saver_->update_waited_s();
  StepResult result = step_.run(batch, progress_, [this] { return facts(); });
  const double waited_s = saver_->update_waited_s() - waited_before;  // for a checkpoint, inside the update
  result.log.seconds[Phase::kOptimizer] -= waited_s;
  result.log.seconds[Phase::kCheckpoint] += waited_s;
  const double step_s = now_s() - start, flop = flop_per_image_;
  recent_step_s_ = recent_step_s_ == 0 ? step_s : 0.9 * recent_step_s_ + 0.1 * step_s;
  StepMetrics m;
  m.seconds.add(waited.seconds), m.seconds.add(result.log.seconds);
  std::vector<PhaseSpan> spans = std::exchange(beside_.spans, {});
  for (const PhaseLog* log : {&waited, &result.log}) spans.insert(spans.end(), log->spans.begin(), log->spans.end());
  agreed_ = result.facts;
  m.step = progress_.step, m.loss = agreed_.loss, m.mse = agreed_.mse, m.vb = agreed_.vb;
  m.lr = result.lr, m.grad_norm = result.grad_norm, m.non_finite = result.non_finite;
  m.images_per_second = double(config_.train.global_batch) / step_s;
  m.tflops = flop * m.images_per_second * 1e-12;
  m.mfu = m.tflops * 1e12 / peak_flops_;
  last_mfu_ = m.mfu;
  m.skipped_steps = progress_.skipped_steps, m.bad_files = int64_t(agreed_.bad_files);
  m.allreduce_hidden_s = result.allreduce_hidden_s;
  trace_.add_step(m.step, start, spans, step_.sync().communication().buckets);
  return m;
}

// Collective: a run in which ranks differ ends here, before it writes anything.
void Run::verify() {
  if (config_.dist.verify_every == 0 || verified_step_ == progress_.step) return;
  const PhaseTimer timer(beside_, Phase::kVerify);
  if (automem_) automem_->begin_other(/*writes=*/false);
  const int part = groups_.tensor() ? groups_.tensor()->communicator().rank() : 0;
  verify_replicas(config_, model_.parameters(), progress_.step, part, comm_, ctx_);
  verified_step_ = progress_.step;
}

// What this rank tells the others once per step. Unreadable samples: each rank counts its own.
StepFacts Run::facts() {
  const uint64_t flags = platform::take_signal_flags();
  const bool time_is_over = options_.max_hours > 0 && now_s() - start_s_ > 0.99 * 3600 * options_.max_hours;
  return {.bad_files = double(data_->bad_files()),
          .stop = (flags & platform::kStopRequested) != 0 || time_is_over,
          .checkpoint = (flags & platform::kCheckpointRequested) != 0,
          .peak_too_low = last_mfu_ > kMaxMfu,
          .writes_checkpoint = saver_->waits()};
}

// Begins the checkpoint of this step; one that was begun before is over first. `must_succeed`: returns when it is
// whole.
void Run::checkpoint(bool must_succeed) {
  const PatienceScope no_limit(comm_, groups_, 0);  // the others wait for as long as a disk takes
  const PhaseTimer timer(beside_, Phase::kCheckpoint);
  DITRAIN_CHECK(!step_.weights_are_spoilt(), "a checkpoint of weights that a bad step has spoilt");
  verify();
  judge(saver_->finish(), false);
  checkpoint_start_s_ = now_s();
  judge(saver_->start({.step = progress_.step,
                       .optimizer_step = progress_.optimizer_step,
                       .skipped_steps = progress_.skipped_steps,
                       .world_size = comm_.world_size(),
                       .isa = kernels::chosen_isa(),
                       .kernels = kernels::dispatch_report(),
                       .version = kVersion,
                       .config_yaml = config::to_yaml(config_)}),
        must_succeed);
  if (must_succeed || !config_.checkpoint.async) judge(saver_->finish(), must_succeed);
}

// Collective, when no rank works on the checkpoint that is being written.
void Run::advance_checkpoint() {
  const PatienceScope no_limit(comm_, groups_, 0);
  const PhaseTimer timer(beside_, Phase::kCheckpoint);
  judge(saver_->advance(), false);
}

// A checkpoint that is over, if there is one, on all ranks alike.
void Run::judge(const std::optional<checkpoint::SaveOutcome>& outcome, bool must_succeed) {
  if (!outcome) return;
  if (outcome->problem.empty()) {
    log::info("checkpoint: {} ({:.2f} s)", outcome->folder, now_s() - checkpoint_start_s_);
    return;
  }
  if (must_succeed || config_.checkpoint.on_error == config::OnCheckpointError::kStop)
    throw RunError({.where = "checkpoint",
                    .what = "step " + std::to_string(outcome->step) + " could not be written: " + outcome->problem,
                    .hint = "making room, then --resume auto: earlier checkpoints are intact"});
  if (leader()) log::warn("checkpoint failed, training goes on, earlier ones are intact: {}", outcome->problem);
}

// Samples and validation at their intervals and at the end. Returns whether there were any.
bool Run::after_step(StepMetrics& m, bool last) {
  const auto due = [&](int64_t every) { return every > 0 && (progress_.step % every == 0 || last); };
  if (!due(config_.sample.every_steps) && !due(config_.eval.every_steps)) return false;
  const PatienceScope no_limit(comm_, groups_, 0);  // the others wait for as long as rank 0 draws and writes
  if (automem_) automem_->begin_other(/*writes=*/false);
  Evaluation evaluation{config_, model_, *data_, comm_, ctx_, step_.whole(model_.parameters().ema)};
  if (due(config_.sample.every_steps)) {
    const PhaseTimer timer(beside_, Phase::kSample);
    evaluation.sample_grid(leader() ? folder_->sample_picture(progress_.step) : "",
                           last && config_.eval.every_steps > 0, m.extra);
  }
  if (due(config_.eval.every_steps)) {
    const PhaseTimer timer(beside_, Phase::kEval);
    evaluation.validation(m.extra);
  }
  comm_.barrier();
  return true;
}

// Collective: requests that came while samples were drawn and validation ran.
void Run::agree_again() {
  constexpr uint64_t kStop = 1, kCheckpoint = 2;
  const StepFacts mine = facts();
  const uint64_t any = comm_.allreduce_or((mine.stop ? kStop : 0) | (mine.checkpoint ? kCheckpoint : 0));
  agreed_.stop = agreed_.stop || (any & kStop) != 0;
  agreed_.checkpoint = agreed_.checkpoint || (any & kCheckpoint) != 0;
}

void Run::report(StepMetrics& m, bool last) {
  m.seconds.add(std::exchange(beside_.seconds, {}));
  m.rss_bytes = platform::resident_bytes();
  m.bulk_peak_bytes = memory::system_memory().peak_bytes() + (gradient_memory_ ? gradient_memory_->peak_bytes() : 0);
  if (automem_) report_automem(m);
  total_.add(m.seconds);
  hidden_s_ += m.allreduce_hidden_s;
  if (!leader()) return;
  folder_->append_metrics(m);
  const double left = recent_step_s_ * double(config_.train.steps - m.step);
  if (m.step % std::max<int64_t>(1, config_.log.every_steps) == 0 || last)
    log::progress_line(progress_text(m, config_.train.steps, left));
}

void Run::report_automem(StepMetrics& m) {
  const automem::ResidencyTotals now = automem_->totals();
  m.fast_peak_bytes = now.peak_bytes, m.bulk_peak_bytes += automem_->bulk_bytes(),
  m.disk_bytes = automem_->disk_bytes();
  m.automem = {{"bytes_in", now.bytes_in - moved_.bytes_in},
               {"bytes_out", now.bytes_out - moved_.bytes_out},
               {"stall_s", now.stall_s - moved_.stall_s},
               {"late", double(now.late - moved_.late)},
               {"predicted_s", automem_->plan().forecast.step_s}};
  moved_ = now;
  for (const memory::CopySpan& span : automem_->engine().take_spans())
    trace_.add(span.name, "copy", span.begin_s, span.end_s,
               span.direction == memory::Direction::kIn ? Lane::kCopyIn : Lane::kCopyOut);
}

// How long a step may wait for another rank.
double Run::patience_s() const {
  constexpr double kLeast_s = 300, kSteps = 30;
  return config_.dist.timeout_s.value_or(std::max(kLeast_s, kSteps * recent_step_s_));
}

// A rank that waits longer than its patience ends the run, but where it waits for what rank 0 does alone.
int Run::train_loop() {
  while (progress_.step < config_.train.steps) {
    // Beside a checkpoint an update waits for the disk of whoever writes.
    const PatienceScope limit(comm_, groups_, saver_->is_writing() ? 0 : patience_s());
    StepMetrics m = one_step();
    const bool last = progress_.step == config_.train.steps;
    if (!m.non_finite.empty()) {
      const std::string what = fmt::format("step {}: {} is not finite", m.step, m.non_finite);
      if (config_.train.on_non_finite == config::OnNonFinite::kStop) {
        report(m, true);
        const PatienceScope no_limit(comm_, groups_, 0);
        const auto last_one = saver_->finish();
        if (leader() && last_one && !last_one->problem.empty())
          log::warn("the checkpoint of step {} could not be written: {}", last_one->step, last_one->problem);
        throw RunError({.where = "training",
                        .what = what,
                        .hint =
                            "a lower optimizer.lr, optimizer.clip_norm, or train.on_non_finite: skip; then --resume "
                            "auto from the last checkpoint"});
      }
      if (leader()) log::warn("{}: the step is skipped ({} so far)", what, progress_.skipped_steps);
    }
    if (config_.dist.verify_every > 0 && progress_.step % config_.dist.verify_every == 0) verify();
    if ((m.non_finite.empty() || last) && after_step(m, last)) agree_again();
    if (agreed_.peak_too_low) measure_peak(), last_mfu_ = 0;
    const bool stop = agreed_.stop && !last;
    const bool wanted = agreed_.checkpoint ||
                        (config_.checkpoint.every_steps > 0 && progress_.step % config_.checkpoint.every_steps == 0);
    if (saver_->is_writing() && !agreed_.writes_checkpoint) advance_checkpoint();
    report(m, last || stop);  // before the checkpoint: what that holds has its line
    if (last || stop || wanted) checkpoint(last || stop);
    if (stop) {
      log::info("stopped at step {} of {}, checkpoint written; --resume auto goes on", progress_.step,
                config_.train.steps);
      return kExitStoppedEarly;
    }
  }
  return kExitDone;
}

void Run::finish() {
  total_.add(beside_.seconds);
  const double wall = now_s() - loop_start_s_;
  log::info_lines(phase_table(total_, wall, comm_));
  const RunSummary summary = summarise({.total = total_,
                                        .wall_s = wall,
                                        .steps = progress_.step - first_step_,
                                        .threads = placement_.threads,
                                        .comm_shares_cores = comm_.world_size() > 1 && placement_.comm_pus.empty()},
                                       comm_);
  log::info_lines(load_line(summary));
  if (step_.sync().engine()) {
    const double in_group = groups_.tensor() ? groups_.tensor()->summing_s() : 0;
    double seconds[2] = {hidden_s_, total_[Phase::kAllreduceExposed] - in_group};
    comm_.allreduce_sum(seconds, 2);
    const double ranks = double(comm_.world_size()), all = seconds[0] + seconds[1];
    log::info(
        "all-reduce of gradients, mean per rank: {:.2f} s hidden behind backward, {:.2f} s waited for ({:.0f} % "
        "hidden)",
        seconds[0] / ranks, seconds[1] / ranks, all > 0 ? 100 * seconds[0] / all : 0);
  }
  if (groups_.tensor()) {
    double seconds = groups_.tensor()->summing_s();
    comm_.allreduce_sum(&seconds, 1);
    log::info("all-reduce of activations between ranks that share a replica, mean per rank: {:.2f} s waited for",
              seconds / double(comm_.world_size()));
  }
  double peak = double(platform::peak_resident_bytes());
  comm_.allreduce_max(&peak, 1);
  log::info("steps skipped: {}   bad files: {}   largest peak resident memory of any rank: {}", progress_.skipped_steps,
            int64_t(agreed_.bad_files), format_bytes(size_t(peak)));
  for (const std::string& line : advice(summary, config_)) log::info("advice: {}", line);
  if (!options_.trace) return;
  trace_.add_phases(beside_.spans);
  const std::string path = options_.trace->empty() ? options_.out + "/trace.json" : *options_.trace;
  trace_.write(path, comm_);
  log::info("trace: {}", path);
}

int Run::run() {
  platform::install_signal_flags();  // anew: an MPI library may have put handlers of its own there
  open();
  choose_kernels();
  start_report();
  for (int i = 0; i < 3; ++i) measure_peak();
  log::info("FMA peak ({}) of {} thread(s): {:.1f} GFLOP/s", dtype_name(peak_type_),
            comm_.world_size() * team_.num_workers(), peak_flops_ * 1e-9);
  allocate();
  check_fallbacks();
  resumed_.empty() ? initialise_weights() : load_or_fall_back();
  check_same_start();
  if (leader()) begin_folder();
  const auto go_to_own_cores = [this](int64_t) { platform::set_affinity_mask(placement_.helper_pus); };
  loader_ =
      std::make_unique<dataset::Loader>(*data_, dataset::EpochSampler(data_->size(), uint64_t(config_.train.seed)),
                                        dataset::LoaderConfig{.global_batch = config_.train.global_batch,
                                                              .first_in_batch = groups_.data().rank() * plan_.samples,
                                                              .count = plan_.samples,
                                                              .first_step = progress_.step,
                                                              .threads = config_.data.loader_threads,
                                                              .queue_batches = config_.data.queue_batches,
                                                              .seed = uint64_t(config_.train.seed),
                                                              .random_flip = config_.data.random_flip,
                                                              .on_thread_start = go_to_own_cores});
  if (progress_.step >= config_.train.steps)
    log::info("nothing to do: the checkpoint is at step {} of {}", progress_.step, config_.train.steps);
  trace_.watch(step_.tape());
  trace_.start(comm_);
  loop_start_s_ = now_s();
  first_step_ = progress_.step;
  const int code = train_loop();
  loader_.reset();
  finish();
  log::close_file();
  return code;
}

/// Program, instruction set, command line and config of this process.
std::vector<config::Fact> start_facts(const config::Config& config, const TrainOptions& options) {
  const std::string command_line =
      fmt::format("--out {} --resume '{}' --maxh {}{}{}", options.out, options.resume, options.max_hours,
                  options.strict ? " --strict" : "", options.trace ? " --trace " + *options.trace : "");
  std::vector<config::Fact> facts = config::program_facts("ditrain");
  facts.push_back({"instruction set", kernels::chosen_isa(),
                   "the lower one for all (mpirun -x DITRAIN_ISA=NAME): the last bits of their results differ, and "
                   "weights would drift apart"});
  facts.push_back({"command line", command_line, "the same flags for all ranks"});
  facts.push_back({"config", config::to_yaml(config), "one config file on a file system that all nodes share"});
  return facts;
}

}  // namespace

int run_training(const config::Config& wanted, const TrainOptions& options, dist::Communicator& comm) {
  config::validate(wanted);
  const config::Config config = plan::with_tensor_ranks(wanted, comm);
  config::validate_for_ranks(config, comm.world_size());
  config::check_agreement(comm, start_facts(config, options));
  Run run(config, options, comm);
  return run.run();
}

}  // namespace ditrain::train
