#include "ditrain/train/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/config/agreement.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/io/checkpoint_folder.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/plan/inputs.hpp"
#include "ditrain/platform/affinity.hpp"
#include "ditrain/platform/limits.hpp"
#include "ditrain/platform/signals.hpp"
#include "ditrain/train/evaluation.hpp"
#include "ditrain/train/replicas.hpp"
#include "ditrain/version.hpp"
#include "run.hpp"

namespace ditrain::train {
namespace {

constexpr double kMaxMfu = 1.02;  // a step that beats the measured peak says that it was measured too low

/// Program, instruction set, command line and config of this process.
std::vector<config::Fact> start_facts(const config::Config& config, const TrainOptions& options) {
  const std::string command_line = fmt::format(
      "--out {} --resume '{}' --maxh {}{}{}", options.out, options.resume_auto ? "auto" : options.resume_from,
      options.max_hours, options.strict ? " --strict" : "", options.trace ? " --trace " + *options.trace : "");
  std::vector<config::Fact> facts = config::program_facts("ditrain");
  facts.push_back({"instruction set", kernels::chosen_isa(),
                   "the lower one for all (mpirun -x DITRAIN_ISA=NAME): the last bits of their results differ, and "
                   "weights would drift apart"});
  facts.push_back({"command line", command_line, "the same flags for all ranks"});
  facts.push_back({"config", config::to_yaml(config), "one config file on a file system that all nodes share"});
  return facts;
}

}  // namespace

// Pictures become latents, drawn by seed, step and sample, which are the same on any number of ranks.
void Run::encode(dataset::Batch& batch) {
  std::vector<RandomKey> keys;
  const int64_t first = groups_.data().rank() * plan_.samples;
  for (size_t i = 0; i < batch.labels.size(); ++i)
    keys.emplace_back(uint64_t(config_.train.seed), Stream::kPosterior, uint64_t(batch.step), uint64_t(first) + i);
  batch.images = encoder_->encode(ctx_, batch.images, keys);
}

StepMetrics Run::one_step() {
  const double start = now_s();
  heartbeat_.begin(fmt::format("step {}/{}", progress_.step + 1, config_.train.steps));
  heartbeat_.detail("waiting for data");
  PhaseLog waited;
  dataset::Batch batch;
  {
    const PhaseTimer timer(waited, Phase::kData);
    batch = loader_->next();
  }
  if (encoder_) {
    const PhaseTimer timer(waited, Phase::kPrepare);
    heartbeat_.detail("encoding images");
    encode(batch);
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
  const automem::Reading reading(automem_.get());
  const int part = groups_.tensor() ? groups_.tensor()->communicator().rank() : 0;
  verify_replicas(config_, model_.parameters(), progress_.step, part, comm_, ctx_);
  verified_step_ = progress_.step;
}

// For lines within long steps.
void Run::watch_layers() {
  if (!leader() || config_.log.every_seconds == 0) return;
  using autograd::HookPoint;
  const auto tell = [this](const char* pass) {
    return [this, pass](const autograd::Node& node) {
      heartbeat_.detail(fmt::format("micro-batch {} of {}, {} of {}", step_.micro_batch() + 1,
                                    plan_.samples / plan_.micro_batch, pass, node.name()));
    };
  };
  step_.tape().add_hook(HookPoint::kPreForward, tell("forward"));
  step_.tape().add_hook(HookPoint::kPreBackward, tell("backward"));
}

// What this rank tells the others once per step. Unreadable samples: each rank counts its own.
StepFacts Run::facts() {
  const uint64_t flags = platform::take_signal_flags();
  // By the clock of rank 0, from which the others learn it.
  const bool time_for_checkpoint = leader() && !saver_->is_writing() && since_checkpoint_.is_over();
  const bool time_is_over = options_.max_hours > 0 && now_s() - start_s_ > 0.99 * 3600 * options_.max_hours;
  return {.bad_files = double(data_->bad_files()),
          .stop = (flags & platform::kStopRequested) != 0 || time_is_over,
          .checkpoint = (flags & platform::kCheckpointRequested) != 0 || time_for_checkpoint,
          .peak_too_low = last_mfu_ > kMaxMfu,
          .writes_checkpoint = saver_->waits()};
}

// Begins the checkpoint of this step; one that was begun before is over first. `must_succeed`: returns when it is
// whole.
void Run::checkpoint(bool must_succeed) {
  const PhaseTimer timer(beside_, Phase::kCheckpoint);
  DITRAIN_CHECK(!step_.weights_are_spoilt(), "a checkpoint of weights that a bad step has spoilt");
  heartbeat_.begin(fmt::format("checkpoint of step {}", progress_.step));
  verify();
  judge(saver_->finish(), false);
  checkpoint_start_s_ = now_s();
  since_checkpoint_.restart();
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
  const PhaseTimer timer(beside_, Phase::kCheckpoint);
  judge(saver_->advance(), false);
}

// A checkpoint that is over, if there is one, on all ranks alike.
void Run::judge(const std::optional<checkpoint::SaveOutcome>& outcome, bool must_succeed) {
  if (!outcome) return;
  if (outcome->problem.empty()) {
    log::info("checkpoint: {} ({:.2f} s)", outcome->folder, now_s() - checkpoint_start_s_);
    if (leader() && outcome->step == best_step_) try {
        const dist::DiskWork work(comm_);
        io::link_best(folder_->checkpoints(), best_step_);
      } catch (const RunError& error) {
        log::warn("the best checkpoint has no link: {}", error.what());
      }
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
  if (!due(config_.sample.every_steps) && !due(config_.eval.every_steps) && !due(config_.eval.fid_every_steps))
    return false;
  heartbeat_.begin(fmt::format("samples and validation after step {}", progress_.step));
  const PatienceScope no_limit(comm_, groups_, 0);  // the others wait for as long as rank 0 draws and writes
  const automem::Reading reading(automem_.get());
  Evaluation evaluation{config_,        model_,        *data_, comm_, ctx_, step_.whole(model_.parameters().ema),
                        decoder_.get(), encoded_.get()};
  if (due(config_.sample.every_steps)) {
    const PhaseTimer timer(beside_, Phase::kSample);
    heartbeat_.detail("drawing samples");
    evaluation.sample_grid(leader() ? folder_->sample_picture(progress_.step) : "", progress_.step,
                           last && config_.eval.every_steps > 0, m.extra);
  }
  if (due(config_.eval.every_steps)) {
    const PhaseTimer timer(beside_, Phase::kEval);
    heartbeat_.detail("validation loss");
    evaluation.validation(m.extra);
  }
  if (due(config_.eval.fid_every_steps)) measure_fid(m, evaluation);
  comm_.barrier();
  return true;
}

// The best weights so far get a checkpoint.
void Run::measure_fid(StepMetrics& m, Evaluation& evaluation) {
  const PhaseTimer timer(beside_, Phase::kEval);
  heartbeat_.detail("samples for the Frechet distance");
  const double value = evaluation.fid(*fid_, m.extra);
  if (!(value < best_fid_)) return;
  best_fid_ = value, best_step_ = progress_.step;
  agreed_.checkpoint = true;
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
  if ((automem_ == nullptr || automem_->is_settled() || last) && !std::exchange(told_pages_, true)) report_pages();
  if (!leader()) return;
  folder_->append_metrics(m);
  const double left = recent_step_s_ * double(config_.train.steps - m.step);
  const bool by_steps = m.step % std::max<int64_t>(1, config_.log.every_steps) == 0;
  if (!by_steps && !last && !heartbeat_.is_due(/*ahead_s=*/recent_step_s_)) return;
  heartbeat_.told();
  log::progress_line(progress_text(m, config_.train.steps, left));
}

// Collective, once pages are in use: what the system says of them, each line once for all ranks that say so.
void Run::report_pages() {
  std::string text;
  if (gradient_memory_)
    text += fmt::format("gradients in the {}: {}\n", gradient_memory_->name(), gradient_memory_->describe_pages());
  if (automem_) text += automem_->describe_places();
  for (const auto& [line, ranks] : lines_of_ranks(text)) log::info("{}", of_ranks(line, ranks));
  std::string late;
  for (const std::string& note : automem_ ? automem_->late_notes() : std::vector<std::string>()) late += note + "\n";
  const bool any = comm_.allreduce_or(late.empty() ? 0 : 1) != 0;
  if (!any) return;
  std::string all;
  for (const auto& [note, ranks] : lines_of_ranks(late)) {
    log::warn_line(of_ranks(note, ranks));
    all += "note: " + of_ranks(note, ranks) + "\n";
  }
  if (options_.strict)
    throw InputError(
        {.where = "strict", .what = "fallbacks are not allowed with --strict:\n" + (leader() ? all : late)});
}

void Run::report_automem(StepMetrics& m) {
  const automem::ResidencyTotals now = automem_->totals();
  m.fast_peak_bytes = automem_->fast_peak_bytes();
  m.bulk_peak_bytes -= std::min(m.bulk_peak_bytes, automem_->beside_bytes());  // which its allocators count as well
  for (size_t i = 0; i < memory::kTiers.size(); ++i) {
    m.tier_bytes[i] = automem_->tier_bytes(i);
    if (memory::kTiers[i].in_memory) m.bulk_peak_bytes += m.tier_bytes[i];
  }
  m.automem = {{"bytes_in", now.bytes_in - moved_.bytes_in},
               {"bytes_out", now.bytes_out - moved_.bytes_out},
               {"stall_s", now.stall_s - moved_.stall_s},
               {"late", double(now.late - moved_.late)},
               {"predicted_s", automem_->plan().forecast.step_s}};
  for (size_t i = 0; i < memory::kTiers.size(); ++i) {
    if (m.tier_bytes[i] == 0) continue;
    const memory::TierTotals copied = automem_->engine().totals_of(i);
    for (const auto& [direction, word] : {std::pair{memory::Direction::kIn, "in"}, {memory::Direction::kOut, "out"}}) {
      double& before = copied_[i][size_t(direction)];
      const double bytes = copied[size_t(direction)].bytes;
      m.automem[fmt::format("{}_bytes_{}", memory::kTiers[i].name, word)] = bytes - before;
      before = bytes;
    }
  }
  moved_ = now;
  for (const memory::CopySpan& span : automem_->engine().take_spans())
    trace_.add(span.name, "copy", span.begin_s, span.end_s,
               span.direction == memory::Direction::kIn ? Lane::kCopyIn : Lane::kCopyOut);
}

// How long a rank may wait for another one that does not write a checkpoint.
double Run::patience_s() const {
  constexpr double kLeast_s = 300, kSteps = 30;
  return config_.dist.timeout_s.value_or(std::max(kLeast_s, kSteps * recent_step_s_));
}

// A rank that waits longer than its patience ends the run, but where rank 0 draws and writes samples.
int Run::train_loop() {
  while (progress_.step < config_.train.steps) {
    const PatienceScope limit(comm_, groups_, patience_s());
    StepMetrics m = one_step();
    const bool last = progress_.step == config_.train.steps;
    if (!m.non_finite.empty()) {
      const std::string what = fmt::format("step {}: {} is not finite", m.step, m.non_finite);
      if (config_.train.on_non_finite == config::OnNonFinite::kStop) {
        report(m, true);
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
  heartbeat_.begin("weights that the run starts from");
  heartbeat_.start(placement_.helper_pus);
  resumed_.empty() ? initialise_weights() : load_or_fall_back();
  check_same_start();
  heartbeat_.begin("reference of eval");
  prepare_fid();
  if (leader()) begin_folder();
  restore_best();
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
                                                              .augment = config_.data.augment,
                                                              .on_thread_start = go_to_own_cores});
  if (progress_.step >= config_.train.steps)
    log::info("nothing to do: the checkpoint is at step {} of {}", progress_.step, config_.train.steps);
  trace_.watch(step_.tape());
  watch_layers();
  trace_.start(comm_);
  loop_start_s_ = now_s();
  since_checkpoint_.restart();
  first_step_ = progress_.step;
  const int code = train_loop();
  loader_.reset();
  finish();
  log::close_file();
  return code;
}

int run_training(const config::Config& wanted, const TrainOptions& options, dist::Communicator& comm) {
  config::validate(wanted);
  plan::Inputs inputs = plan::open_inputs(wanted);
  const plan::Settled settled = plan::settle(wanted, inputs.facts, plan::ranks_of(comm));
  config::check_agreement(comm, start_facts(settled.config, options));
  Run run(settled, std::move(inputs.data), options, comm);
  return run.run();
}

}  // namespace ditrain::train
