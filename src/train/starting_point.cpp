#include "starting_point.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/checkpoint/checkpoint.hpp"
#include "ditrain/checkpoint/snapshots.hpp"
#include "ditrain/config/agreement.hpp"
#include "ditrain/config/differences.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/report/run_files.hpp"

namespace ditrain::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOrigin = "resumed_from.txt";  // the checkpoint of another run that this one went on from
constexpr double kPatience_s = 30;                   // for a run that is ending when --resume auto comes

// The run folder that a checkpoint folder belongs to, RUN/checkpoints/step_N.
fs::path run_of(const std::string& checkpoint) {
  return fs::weakly_canonical(fs::path(checkpoint) / "state.json").parent_path().parent_path().parent_path();
}

// Also where RUN/checkpoints, or one of them, is a link to another disk.
bool is_of_run(const std::string& checkpoint, const std::string& run, const std::string& checkpoints) {
  if (run_of(checkpoint) == fs::weakly_canonical(run)) return true;
  fs::path folder = fs::absolute(checkpoint).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  return fs::weakly_canonical(folder.parent_path()) == fs::weakly_canonical(checkpoints);
}

}  // namespace

ResumeCandidates::ResumeCandidates(const TrainOptions& options) : options_(options) {
  if (options.resume_auto) folders_ = files::checkpoints_to_resume(options.out + "/checkpoints");
  if (options.resume_from.empty()) return;
  folders_ = {checkpoint::find_checkpoint(options.resume_from)};
  const fs::path found = folders_.front();
  if (fs::exists(found / files::kAveragesFile) && !fs::exists(found / files::kCheckpointFiles[0]))
    throw InputError({.where = options.resume_from,
                      .what = "a snapshot of averages, not a checkpoint",
                      .expected = "a folder of RUN/checkpoints"});
}

std::string ResumeCandidates::next(const config::Config* config, const std::vector<std::string>& class_names) {
  while (!folders_.empty()) {
    const std::string folder = folders_.front();
    checkpoint::CheckpointState state;
    std::string missing = files::missing_file(folder), damage;
    if (missing.empty()) damage = damage_of([&] { state = checkpoint::read_checkpoint_state(folder); });
    for (const auto& [name, file] : state.files)
      if (std::error_code unreadable;
          missing.empty() && fs::status(folder + "/" + name, unreadable).type() == fs::file_type::not_found)
        missing = name;
    if (!missing.empty()) damage = missing + " is missing";
    if (!damage.empty()) {
      skip_damaged(damage);
      continue;
    }
    if (config != nullptr) config::check_resume(config::parse_config(state.config_yaml, folder), *config);
    if (const auto other = checkpoint::other_class(state.class_names, class_names); !other.empty())
      throw InputError({.where = "resume",
                        .what = "the labels of data.path mean other classes than in the run: " + other,
                        .hint = "the former names of the classes, or, if they are the same classes by other names, a "
                                "new --out folder with train.branch_from"});
    step_ = state.step;
    return folder;
  }
  return "";
}

void ResumeCandidates::skip_damaged(const std::string& why) {
  const std::string folder = folders_.front();
  folders_.erase(folders_.begin());
  if (!options_.resume_auto) {
    const std::string intact = checkpoint::newest_intact_beside(folder);
    throw InputError(
        {.where = "resume",
         .what = folder + " is damaged: " + why,
         .hint = intact.empty() ? "another copy of the run: no checkpoint beside it is intact" : "--resume " + intact});
  }
  if (folders_.empty())
    throw InputError({.where = "resume",
                      .what = "no checkpoint in " + options_.out + " is intact; the last one: " + why,
                      .hint = "--out with another folder, to start anew"});
  log::warn("{} is damaged and passed over: {}", folder, why);
}

StartingPoint::StartingPoint(RunContext& run) : run_(run) {
  if (run.leader()) open_folder();
  checkpoint_ = dist::broadcast_text(run.comm, checkpoint_);
  join_lock();
}

void StartingPoint::open_folder() {
  const TrainOptions& options = run_.options;
  if (!fs::exists(options.out) && !options.resume_from.empty())
    checkpoint::find_checkpoint(options.resume_from);  // before a folder is made
  files::make_output_folder(options.out);
  lock_.emplace(options.out, options.resume_auto ? kPatience_s : 0);
  run_.note(lock_->note());
  if (options.resumes())
    for (const std::string& folder : {run_.checkpoints(), checkpoint::snapshots_of(options.out)})
      files::remove_stale_temporaries(folder);
  checkpoint_ = candidates_.emplace(options).next(&run_.config, run_.settled.facts.class_names);
  expect_own_run();
  folder_ = std::make_unique<RunFolder>(options.out, options.resumes());
  log::open_file(options.out + "/log.txt");
}

// A run that began with another run's checkpoint (--resume RUN/checkpoints/step_N --out NEW) and was ended before its
// own first one begins with it again.
void StartingPoint::expect_own_run() const {
  const std::string& out = run_.options.out;
  const std::string file = out + "/" + kOrigin;
  const bool begun = files::count_checkpoints(run_.checkpoints()) == 0 && fs::exists(file);
  const std::string origin = begun ? files::read_text_file(file, 1 << 16) : "";
  if (checkpoint_.empty() && begun)
    throw InputError({.where = "resume",
                      .what = fmt::format("{} went on from another run, and has no checkpoint of its own yet", out),
                      .hint = fmt::format("--resume {}, or another --out to start anew", quoted_word(origin))});
  const bool again = begun && fs::weakly_canonical(checkpoint_) == fs::path(origin);
  if (!checkpoint_.empty() && (begun || holds_run(out)) && !again && !is_of_run(checkpoint_, out, run_.checkpoints()))
    throw InputError({.where = "output",
                      .what = out + " holds another run than " + checkpoint_,
                      .expected = "the folder of the resumed run, or a new one"});
}

void StartingPoint::join_lock() {
  if (lock_ || !run_.writes() || !fs::exists(run_.options.out + "/.lock")) return;
  lock_.emplace(run_.options.out);
  run_.note(lock_->note());
}

void StartingPoint::load(const std::function<void(const std::string&)>& load) {
  while (!checkpoint_.empty()) {
    checkpoint::expect_readable(checkpoint_);  // a folder that this rank does not see is not damage
    const std::string damage = damage_of([&] { load(checkpoint_); });
    std::string problem;
    for (const std::string& of_rank : run_.comm.gather_strings(damage)) problem = problem.empty() ? of_rank : problem;
    problem = dist::broadcast_text(run_.comm, problem);
    if (problem.empty()) return;
    if (run_.leader()) {
      candidates_->skip_damaged(problem);
      checkpoint_ = candidates_->next(&run_.config, run_.settled.facts.class_names);
    }
    checkpoint_ = dist::broadcast_text(run_.comm, checkpoint_);
  }
}

// What every rank read by itself: a folder that is not shared, or a copy of the data that is not complete.
void StartingPoint::expect_same_on_all_ranks(const Progress& progress, int64_t samples) {
  constexpr const char* kShare = "a file system that all nodes share";
  join_lock();
  const bool seen = !run_.writes() || fs::exists(run_.options.out + "/.lock");
  config::check_agreement(run_.comm,
                          {{"starting point", fmt::format("step {}, {} samples", progress.step, samples), kShare},
                           {"run folder", run_.options.out + (seen ? "" : ", which is not there"), kShare}});
}

void StartingPoint::begin(int64_t step, const std::string& topology) {
  if (!run_.leader()) return;
  if (std::error_code error; checkpoint_.empty())
    fs::remove(run_.options.out + "/" + kOrigin, error);  // of a start that came no further
  else if (!is_of_run(checkpoint_, run_.options.out, run_.checkpoints()))
    folder_->write(kOrigin, fs::weakly_canonical(checkpoint_).string());  // before anything else tells of a run
  folder_->write("config.yaml", config::to_yaml(run_.settled.wanted));
  folder_->write("topology.txt", topology);
  for (const std::string& aside : files::discard_checkpoints_after(folder_->checkpoints(), step))
    log::info("a checkpoint after step {} is now {}; {}", step, aside,
              run_.config.checkpoint.keep_discarded ? "it stays (checkpoint.keep_discarded)"
                                                    : "it goes when the next one is whole");
  files::discard_checkpoints_after(checkpoint::snapshots_of(run_.options.out), step);
  for (const auto& [grid_step, path] : report::sample_grids(run_.options.out)) {
    if (grid_step <= step) continue;
    std::error_code error;
    const fs::path grid = path;
    fs::rename(grid, grid.parent_path() / ("discarded_" + grid.filename().string()), error);
    if (error) log::warn("{} is of a step that is discarded, and stays: {}", path, error.message());
  }
  // A branch that goes on without a checkpoint of its own begins anew, perhaps at a later step of its trunk.
  const int64_t kept = checkpoint_.empty() ? 0 : step, lines = discard_metrics_after(run_.options.out, kept);
  if (lines > 0) log::info("{} line(s) after step {} moved to metrics.discarded.jsonl", lines, kept);
}

}  // namespace ditrain::train
