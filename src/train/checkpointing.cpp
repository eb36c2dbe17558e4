#include "checkpointing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/config/differences.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/plan/memory_plan.hpp"
#include "ditrain/train/replicas.hpp"
#include "ditrain/version.hpp"

namespace ditrain::train {

namespace {

constexpr double kSlowDisk = 100e6;  // bytes/s, until a checkpoint has been written

// A problem may be another rank's, of which there is only the text.
bool is_lack_of_space(const std::string& problem) {
  constexpr int kErrors[] = {ENOSPC, EDQUOT, EFBIG};
  return std::any_of(std::begin(kErrors), std::end(kErrors),
                     [&](int error) { return problem.find(std::strerror(error)) != problem.npos; });
}

std::string way_out(const std::string& problem, bool has_earlier) {
  const std::string resume = is_lack_of_space(problem) ? "free disk space, then --resume auto" : "--resume auto";
  return resume +
         (has_earlier ? ": earlier checkpoints are intact" : ", which starts anew: there is no earlier checkpoint");
}

}  // namespace

Checkpointing::Checkpointing(TrainingState& state, StartingPoint& start, RunReport& report)
    : state_(state),
      run_(state.run),
      start_(start),
      report_(report),
      since_last_(60 * run_.config.checkpoint.every_minutes) {
  const plan::CheckpointDisk disk = plan::checkpoint_disk(run_.config);
  // At most a tenth of --maxh: large models have faster disks, and each job has to make steps.
  last_s_ = std::min(disk.checkpoint_bytes / kSlowDisk, 360 * run_.options.max_hours);
  const double done = double(state.progress.step) / double(run_.config.train.steps);
  if (!run_.leader() || done >= 1) return;
  const std::string warning = plan::disk_warning(disk, run_.options.out, done);
  if (!warning.empty()) log::warn_line(warning);
}

bool Checkpointing::is_due(int64_t step) const {
  const int64_t every = run_.config.checkpoint.every_steps;
  return (every > 0 && step % every == 0) || is_snapshot(step);
}

bool Checkpointing::is_snapshot(int64_t step) const {
  const int64_t every = run_.config.ema.snapshots_every;
  return every > 0 && (step % every == 0 || step == run_.config.train.steps);
}

void Checkpointing::begin(bool must_succeed) {
  const PhaseTimer timer(report_.off_step, Phase::kCheckpoint);
  const Progress& progress = state_.progress;
  DITRAIN_CHECK(!state_.step.weights_are_spoilt(), "a checkpoint of weights that a bad step has spoilt");
  report_.heartbeat.begin(fmt::format("checkpoint of step {}", progress.step));
  verify();
  if (state_.step.outer()) state_.step.outer()->finish();  // what is under way is a part of the state
  checkpoint::CheckpointSaver& saver = *state_.saver;
  if (begun_step_ != progress.step || must_succeed) handle_outcome(saver.finish(), false);
  if (std::exchange(begun_step_, progress.step) == progress.step) return;  // unless that failed
  since_last_.restart();
  handle_outcome(saver.start({.step = progress.step,
                              .optimizer_step = progress.optimizer_step,
                              .skipped_steps = progress.skipped_steps,
                              .skipped_in_a_row = progress.skipped_in_a_row,
                              .world_size = run_.comm.world_size(),
                              .groups = run_.plan.gradients.groups,
                              .samples = run_.settled.facts.samples,
                              .class_names = run_.settled.facts.class_names,
                              .isa = kernels::chosen_isa(),
                              .kernels = kernels::dispatch_report(),
                              .version = kVersion,
                              .config_yaml = config::to_yaml(run_.config)},
                             is_snapshot(progress.step)),
                 must_succeed);
  if (must_succeed || !run_.config.checkpoint.async) handle_outcome(saver.finish(), must_succeed);
}

void Checkpointing::finish() {
  const PhaseTimer timer(report_.off_step, Phase::kCheckpoint);
  handle_outcome(state_.saver->finish(), false);
}

void Checkpointing::advance() {
  const PhaseTimer timer(report_.off_step, Phase::kCheckpoint);
  handle_outcome(state_.saver->advance(), false);
}

void Checkpointing::finish_after_failure() {
  const auto last = state_.saver->finish();
  if (run_.leader() && last && !last->problem.empty())
    log::warn("the checkpoint of step {} could not be written: {}", last->step, last->problem);
}

// On all ranks alike.
void Checkpointing::handle_outcome(const std::optional<checkpoint::SaveOutcome>& outcome, bool must_succeed) {
  if (!outcome) return;
  if (outcome->problem.empty()) {
    last_s_ = outcome->seconds;
    log::info("checkpoint: {} ({:.2f} s)", outcome->folder, last_s_);
    whole_step_ = outcome->step;
    if (whole_step_ == best_.step) link_best();
    return;
  }
  if (outcome->step == best_.step) best_ = linked_;
  if (outcome->step == begun_step_) begun_step_ = -1;
  const bool has_earlier = files::count_checkpoints(run_.checkpoints()) > 0;
  if (must_succeed || run_.config.checkpoint.on_error == config::OnCheckpointError::kStop)
    throw RunError({.where = "checkpoint",
                    .what = "step " + std::to_string(outcome->step) + " could not be written: " + outcome->problem,
                    .hint = way_out(outcome->problem, has_earlier)});
  if (run_.leader())
    log::warn("checkpoint failed, training goes on, {}: {}",
              has_earlier ? "earlier ones are intact" : "there is no earlier one", outcome->problem);
}

void Checkpointing::link_best() {
  linked_ = best_;
  if (run_.leader()) try {
      const dist::DiskWork work(run_.comm);
      files::link_best(run_.checkpoints(), best_.step);
    } catch (const RunError& error) {
      log::warn("the best checkpoint has no link: {}", error.what());
    }
}

void Checkpointing::verify() {
  const int64_t step = state_.progress.step;
  if (run_.config.dist.verify_every == 0 || verified_step_ == step) return;
  compare_ranks(step);
  verified_step_ = step;
}

void Checkpointing::expect_same_start() { compare_ranks(-1); }

void Checkpointing::compare_ranks(int64_t step) {
  const PhaseTimer timer(report_.off_step, Phase::kVerify);
  const automem::Reading reading(state_.automem.get());
  if (state_.step.outer()) state_.step.outer()->finish();
  const int part = run_.groups.tensor() ? run_.groups.tensor()->communicator().rank() : 0;
  verify_replicas(run_.config, state_.model.parameters(), step, {part, run_.groups.group()}, run_.comm, run_.ctx);
}

void Checkpointing::restore_best(const std::string& metric) {
  if (start_.checkpoint().empty()) return;
  double found[2] = {best_.value, -1};
  const auto best = run_.leader() ? files::best_checkpoint(run_.checkpoints()) : std::nullopt;
  if (best) {
    const std::string link = run_.checkpoints() + "/best";
    const std::string damage = damage_of([&] {
      const config::Config before = config::parse_config(checkpoint::read_checkpoint_state(link).config_yaml, link);
      const auto value = metric_of_step(run_.options.out, *best, metric);
      if (!config::measure_same_distances(before, run_.config))
        log::info("{}: was measured in another way before; the best checkpoint is chosen anew", metric);
      else if (value)
        found[0] = *value, found[1] = double(*best);
      else
        log::warn("the best checkpoint is chosen anew: metrics.jsonl has no {} of step {}", metric, *best);
    });
    if (!damage.empty()) log::warn("the best checkpoint is chosen anew: {}", damage);
  }
  run_.comm.broadcast(found, sizeof found, 0);
  best_ = linked_ = {found[0], int64_t(found[1])};
}

bool Checkpointing::note_value(double value) {
  if (!(value < best_.value)) return false;
  best_ = {value, state_.progress.step};
  if (whole_step_ == best_.step) link_best();
  return begun_step_ != best_.step;
}

void Checkpointing::report_best(const std::string& metric) const {
  if (best_.step < 0) return;
  const bool linked = run_.leader() && files::best_checkpoint(run_.checkpoints()) == best_.step;
  const std::string folder = run_.checkpoints() + "/" + files::checkpoint_name(best_.step);
  std::error_code ignored;
  log::info("best {}: {:.4g} at step {}, {}", metric, best_.value, best_.step,
            linked                                     ? run_.checkpoints() + "/best"
            : std::filesystem::exists(folder, ignored) ? folder  // on a file system without symlinks
                                                       : "of which there is no checkpoint");
}

}  // namespace ditrain::train
