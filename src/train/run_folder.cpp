#include "ditrain/train/run_folder.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/files/checkpoint_folder.hpp"
#include "ditrain/files/files.hpp"

namespace ditrain::train {

namespace fs = std::filesystem;

RunLock::RunLock(const std::string& folder, double patience_s) : lock_(folder + "/.lock") {
  const files::FileLock::Attempt attempt = lock_.lock_for_job(patience_s, [&] {
    log::info("{} is used by another run ({}); waiting up to {:.0f} s for it to end", folder, lock_.holder(),
              patience_s);
  });
  if (attempt == files::FileLock::Attempt::kHeldByOther)
    throw InputError({.where = "output",
                      .what = folder + " is used by a run that is alive: " + lock_.holder(),
                      .expected = "one run per folder",
                      .hint = "--out with another folder, or ending that run first"});
  if (attempt == files::FileLock::Attempt::kNoLocks) note_without_locks(folder);
  lock_.describe(files::this_process());
}

RunLock::RunLock(const std::string& folder) : lock_(folder + "/.lock") {
  const files::FileLock::Attempt attempt = lock_.share();
  if (attempt == files::FileLock::Attempt::kHeldByOther)
    throw RunError({.where = "output", .what = "rank 0 does not hold " + folder + " any more: another run takes it"});
  if (attempt == files::FileLock::Attempt::kNoLocks) note_without_locks(folder);
}

void RunLock::note_without_locks(const std::string& folder) {
  note_ =
      fmt::format("{} cannot be locked ({}): nothing keeps a second run from writing into it", folder, lock_.reason());
}

bool holds_run(const std::string& path) {
  for (const char* name : {"/config.yaml", "/metrics.jsonl"})
    if (fs::exists(path + name)) return true;
  // A start that was refused leaves an empty folder of checkpoints.
  return fs::is_directory(path + "/checkpoints") && !fs::is_empty(path + "/checkpoints");
}

RunFolder::RunFolder(std::string path, bool resuming) : path_(std::move(path)) {
  if (!resuming && holds_run(path_))
    throw InputError({.where = "output",
                      .what = path_ + " holds a run already",
                      .expected = "a new folder",
                      .hint = "--resume auto to go on with that run, or --out with another folder"});
  for (const std::string& dir : {path_, checkpoints(), path_ + "/samples"}) files::make_output_folder(dir);
  for (const std::string& dir : {path_, path_ + "/samples"}) files::remove_stale_files(dir);
}

std::string RunFolder::sample_picture(int64_t step) const {
  return path_ + "/samples/" + files::checkpoint_name(step) + ".png";
}

void RunFolder::write(const std::string& name, const std::string& content) const {
  files::write_file_atomically(path_ + "/" + name, content);
}

void RunFolder::append_metrics(const StepMetrics& metrics) {
  try {
    files::append_line(path_ + "/metrics.jsonl", to_json_line(metrics));
  } catch (const RunError& e) {
    if (!warned_) log::warn("metrics are not written: {}", e.what());
    warned_ = true;
  }
}

}  // namespace ditrain::train
