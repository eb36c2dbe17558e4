#include "train_loop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/config/replicas.hpp"
#include "ditrain/plan/step_time.hpp"
#include "ditrain/platform/affinity.hpp"
#include "ditrain/platform/signals.hpp"

namespace ditrain::train {
namespace {

constexpr int64_t kMostSkippedInARow = 100;

dataset::LoaderConfig loader_config(const RunContext& run, int64_t first_step) {
  const config::Config& c = run.config;
  const int64_t samples = run.plan.samples;
  return {.global_batch = c.train.global_batch,
          .first_in_batch = run.groups.data().rank() * samples,
          .count = samples,
          .first_step = first_step,
          .threads = c.data.loader_threads,
          .queue_batches = c.data.queue_batches,
          .seed = uint64_t(c.train.seed),
          .random_flip = c.data.random_flip,
          .augment = c.data.augment,
          .on_thread_start = [&run](int64_t) { platform::set_affinity_mask(run.placement.helper_pus); }};
}

}  // namespace

TrainLoop::TrainLoop(TrainingState& state, const dataset::Dataset& data, const dataset::Dataset& validation,
                     eval::TrainingFid* fid, StartingPoint& start, Checkpointing& checkpointing, RunReport& report)
    : state_(state),
      run_(state.run),
      config_(run_.config),
      data_(data),
      validation_(validation),
      fid_(fid),
      start_(start),
      checkpointing_(checkpointing),
      report_(report),
      loader_(data, dataset::EpochSampler(data.size(), uint64_t(config_.train.seed)),
              loader_config(run_, state.progress.step)) {}

// Pictures become latents, drawn by seed, step and sample, which are the same on any number of ranks.
void TrainLoop::encode(dataset::Batch& batch) {
  std::vector<RandomKey> keys;
  const int64_t first = run_.groups.data().rank() * run_.plan.samples;
  for (size_t i = 0; i < batch.conditions.size(); ++i)
    keys.emplace_back(uint64_t(config_.train.seed), Stream::kPosterior, uint64_t(batch.step), uint64_t(first) + i);
  batch.images = state_.encoder->encode(run_.ctx, batch.images, keys);
}

// In the middle of a step, where ranks add up their facts: the end of a step is told by the next one.
double TrainLoop::take_cpu_s() {
  const double now = cpu_s();
  cpu_s_ += now - std::exchange(cpu_mark_s_, now);
  return std::exchange(cpu_s_, 0);
}

StepMetrics TrainLoop::step() {
  const double start_s = now_s();
  cpu_mark_s_ = cpu_s();
  report_.heartbeat.begin(fmt::format("step {}/{}", state_.progress.step + 1, config_.train.steps));
  report_.heartbeat.detail("waiting for data");
  PhaseLog waited;
  dataset::Batch batch;
  {
    const PhaseTimer timer(waited, Phase::kData);
    batch = loader_.next();
  }
  if (state_.encoder) {
    const PhaseTimer timer(waited, Phase::kPrepare);
    report_.heartbeat.detail("encoding images");
    encode(batch);
  }
  const double waited_before = state_.saver->update_waited_s();
  const int64_t number = state_.progress.step + 1;
  StepResult result = state_.step.run(batch, state_.progress, [this, number] {
    StepFacts facts = own_facts(number, expected_evaluation_s(number));
    facts.cpu_seconds = take_cpu_s();
    return facts;
  });
  const double now = cpu_s();
  cpu_s_ += now - std::exchange(cpu_mark_s_, now);
  const double waited_s = state_.saver->update_waited_s() - waited_before;  // for a checkpoint, inside the update
  result.log.seconds[Phase::kOptimizer] -= waited_s;
  result.log.seconds[Phase::kCheckpoint] += waited_s;
  agreed_ = result.facts;
  return report_.metrics_of(result, waited, start_s);
}

// What this rank tells the others once per step. Unreadable samples: each rank counts its own.
StepFacts TrainLoop::own_facts(int64_t number, double evaluation_s) {
  const uint64_t flags = platform::take_signal_flags();
  const double limit_s = 3600 * run_.options.max_hours;
  // Samples and validation, if they come next, another step, with outer steps as many as lie between two of them, and a
  // checkpoint have to fit in, too.
  const int64_t steps = config_.dist.outer ? config_.dist.outer->every : 1;
  const bool checkpoint = (flags & platform::kCheckpointRequested) != 0 || checkpointing_.is_time();
  // With the one that comes next or is being written.
  const bool another = checkpoint || checkpoint_wanted_ || checkpointing_.is_due(number) ||
                       is_due(config_.eval.fid_every_steps, number) || state_.saver->is_writing();
  const int checkpoints = another ? 2 : 1;
  const double end_s =
      now_s() + evaluation_s + double(steps) * report_.recent_step_s() + double(checkpoints) * checkpointing_.last_s();
  const bool time_is_over = limit_s > 0 && end_s - run_.options.start_s > 0.99 * limit_s;
  return {.bad_files = double(data_.bad_files()),
          .stop = (flags & platform::kStopRequested) != 0 || time_is_over,
          .checkpoint = checkpoint,
          .peak_too_low = report_.beats_peak(),
          .writes_checkpoint = state_.saver->waits()};
}

// Collective: requests that came while samples were drawn and validation ran.
void TrainLoop::agree_again() {
  constexpr uint64_t kStop = 1, kCheckpoint = 2;
  const StepFacts mine = own_facts(state_.progress.step, /*evaluation_s=*/0);
  const uint64_t any = run_.comm.allreduce_or((mine.stop ? kStop : 0) | (mine.checkpoint ? kCheckpoint : 0));
  stop_wanted_ = stop_wanted_ || (any & kStop) != 0;
  checkpoint_wanted_ = checkpoint_wanted_ || (any & kCheckpoint) != 0;
}

bool TrainLoop::is_due(int64_t every, int64_t number) const {
  return every > 0 && (number % every == 0 || number == config_.train.steps);
}

// How long what is due after this step took the last time, or is predicted to take.
double TrainLoop::expected_evaluation_s(int64_t number) const {
  if (run_.options.max_hours == 0 || !evaluates_after(number)) return 0;
  const plan::EvaluationPasses passes = plan::evaluation_passes(run_.plan);
  const double pass_s = plan::forward_s(run_.plan, report_.recent_step_s()) / double(run_.plan.replicas);
  const auto expected = [&](int64_t every, double took_s, double of_passes) {
    return !is_due(every, number) ? 0 : took_s > 0 ? took_s : of_passes * pass_s;
  };
  return expected(config_.sample.every_steps, took_.samples_s, passes.samples) +
         expected(config_.eval.every_steps, took_.validation_s, passes.validation) +
         expected(config_.eval.fid_every_steps, took_.distance_s, passes.distance);
}

bool TrainLoop::evaluates_after(int64_t number) const {
  return is_due(config_.sample.every_steps, number) || is_due(config_.eval.every_steps, number) ||
         is_due(config_.eval.fid_every_steps, number);
}

// Samples and validation at their intervals and at the end.
void TrainLoop::evaluate(StepMetrics& m, bool last) {
  const int64_t step = state_.progress.step;
  const auto due = [&](int64_t every) { return is_due(every, step); };
  const config::EvalConfig& eval = config_.eval;
  report_.heartbeat.begin(fmt::format("samples and validation after step {}", step));
  const RankTimeoutScope no_limit(run_, 0);  // the others wait for as long as rank 0 draws and writes
  const automem::Reading reading(state_.automem.get());
  Evaluation evaluation{config_,
                        state_.model,
                        data_,
                        validation_,
                        run_.comm,
                        run_.ctx,
                        state_.step.whole(state_.model.parameters().ema_state()),
                        state_.guide.get(),
                        state_.decoder.get(),
                        state_.encoded.get()};
  if (due(config_.sample.every_steps)) {
    const ScopedTimer took(&(took_.samples_s = 0));
    const PhaseTimer timer(report_.off_step, Phase::kSample);
    report_.heartbeat.detail("drawing samples");
    evaluation.sample_grid(run_.leader() ? start_.folder()->sample_picture(step) : "", step,
                           last && eval.every_steps > 0, m.extra);
  }
  if (due(eval.every_steps)) {
    const ScopedTimer took(&(took_.validation_s = 0));
    const PhaseTimer timer(report_.off_step, Phase::kEval);
    report_.heartbeat.detail("validation loss");
    evaluation.validation(m.extra);
  }
  if (due(eval.fid_every_steps)) {
    const ScopedTimer took(&(took_.distance_s = 0));
    const PhaseTimer timer(report_.off_step, Phase::kEval);
    report_.heartbeat.detail("samples for the Frechet distance");
    if (checkpointing_.note_value(evaluation.fid(*fid_, m.extra))) checkpoint_wanted_ = true;
  }
  run_.comm.barrier();
}

// How long a rank may wait for another one that does not write a checkpoint.
double TrainLoop::rank_timeout_s() const {
  constexpr double kLeast_s = 300, kSteps = 30;
  return config_.dist.timeout_s.value_or(std::max(kLeast_s, kSteps * report_.expected_step_s()));
}

void TrainLoop::handle_non_finite(StepMetrics& m) {
  std::string what = fmt::format("step {}: {} is not finite", m.step, m.non_finite);
  if (std::isfinite(m.loss) && std::isfinite(m.grad_norm))
    what = fmt::format("step {}: the gradient norm of {:.3g} counts as not finite, because its square overflows",
                       m.step, m.grad_norm);
  const bool skips = config_.train.on_non_finite == config::OnNonFinite::kSkip;
  const int64_t in_a_row = state_.progress.skipped_in_a_row;
  if (skips) {
    if (run_.leader()) log::warn("{}: the step is skipped ({} so far)", what, state_.progress.skipped_steps);
    if (in_a_row < kMostSkippedInARow) return;
    what += fmt::format(", as in the {} steps before it: no step changes these weights any more", in_a_row - 1);
  }
  report_.tell_step(m, true);
  checkpointing_.finish_after_failure();
  // A resumed run would meet it again, with the same bits.
  const std::string from = checkpointing_.has_any()
                               ? fmt::format(
                                     "; train.branch_from: {}/checkpoints/step_N, from before the loss rose, keeps "
                                     "what has been trained",
                                     run_.options.out)
                               : "";
  throw RunError({.where = "training",
                  .what = what,
                  .hint = fmt::format("a new --out folder with a lower optimizer.lr, optimizer.clip_norm{}{}",
                                      skips ? "" : ", or train.on_non_finite: skip", from)});
}

// Between outer steps each group has other weights.
bool TrainLoop::are_alike() const { return config::is_outer_step(config_, state_.progress.step); }

void TrainLoop::save_if_wanted(bool must_succeed) {
  // Weights that step after step leaves as they are may be bad, and older checkpoints would be deleted for them.
  const int64_t in_a_row = state_.progress.skipped_in_a_row;
  const bool wanted = are_alike() && in_a_row <= 1 && std::exchange(checkpoint_wanted_, false);
  if (must_succeed && in_a_row > 1 && run_.leader())
    log::warn("the last {} steps were skipped: this checkpoint has the weights from before them, and earlier ones stay",
              in_a_row);
  if (must_succeed || wanted) checkpointing_.begin(must_succeed);
}

// A rank that waits longer than its timeout ends the run, but where rank 0 draws and writes samples.
int TrainLoop::run() {
  const int64_t steps = config_.train.steps;
  while (state_.progress.step < steps) {
    const RankTimeoutScope limit(run_, rank_timeout_s());
    StepMetrics m = step();
    const bool last = state_.progress.step == steps;
    if (!m.non_finite.empty()) handle_non_finite(m);
    if (config_.dist.verify_every > 0 && state_.progress.step % config_.dist.verify_every == 0) checkpointing_.verify();
    if (agreed_.peak_too_low) report_.measure_peak();
    const bool stopped_before = stop_wanted_;
    stop_wanted_ = stop_wanted_ || agreed_.stop;
    checkpoint_wanted_ = checkpoint_wanted_ || agreed_.checkpoint || checkpointing_.is_due(state_.progress.step);
    if (state_.saver->is_writing() && !agreed_.writes_checkpoint) checkpointing_.advance();
    // A run that has to stop may have no time for pictures, only for its checkpoint. Else samples and validation, which
    // may take long and may fail, come after the checkpoint of the same step.
    if (((m.non_finite.empty() && !stop_wanted_) || last) && evaluates_after(state_.progress.step)) {
      // Distances take long, and nobody looks at signals and time limits meanwhile.
      checkpoint_wanted_ = checkpoint_wanted_ || is_due(config_.eval.fid_every_steps, state_.progress.step);
      try {
        save_if_wanted(last);
      } catch (const RunError&) {  // perhaps on this rank alone, which waited too long for another one
        report_.write_step(m);
        throw;
      }
      checkpointing_.finish();
      evaluate(m, last);
      agree_again();
    }
    const bool alike = are_alike(), stop = stop_wanted_ && alike && !last;
    if (stop_wanted_ && !stopped_before && !alike) log::info("stopping after the next outer step");
    report_.tell_step(m, last || stop);  // without samples before the checkpoint: what that holds has its line
    save_if_wanted(last || stop);
    if (!stop) continue;
    log::info("stopped at step {} of {}, checkpoint written; --resume auto goes on", state_.progress.step, steps);
    return kExitStoppedEarly;
  }
  return kExitDone;
}

}  // namespace ditrain::train
