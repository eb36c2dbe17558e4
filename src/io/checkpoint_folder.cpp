#include "ditrain/io/checkpoint_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/io/files.hpp"

namespace ditrain::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step_";
// The kinds of hidden names in a checkpoints folder; remove_stale_temporaries knows no others.
constexpr std::string_view kWriting = ".tmp_";         // being written by a CheckpointWriter
constexpr std::string_view kReplaced = ".old_";        // moved aside while its replacement takes the name
constexpr std::string_view kDeleted = ".deleted_";     // being removed
constexpr std::string_view kDiscarded = "discarded_";  // of a continuation that a resumed run has left
constexpr const char* kNewLink = ".tmp_latest";        // a symlink before it is renamed

std::string join(const std::string& dir, std::string_view a, std::string_view b = "") {
  return (fs::path(dir) / fmt::format("{}{}", a, b)).string();
}

std::optional<int64_t> step_of(const std::string& name) {
  int64_t step = -1;
  if (!name.starts_with(kStep)) return std::nullopt;
  std::from_chars(name.data() + kStep.size(), name.data() + name.size(), step);
  // Only the one canonical spelling counts, so that a step has one folder.
  if (step < 0 || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

bool is_complete(const std::string& folder) {
  return std::all_of(kCheckpointFiles.begin(), kCheckpointFiles.end(), [&](const char* file) {
    std::error_code ignored;
    return fs::is_regular_file(fs::path(folder) / file, ignored);
  });
}

std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(dir, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  while (!error && it != fs::directory_iterator()) {
    names.push_back(it->path().filename().string());
    it.increment(error);
  }
  if (error) throw InputError({.where = dir, .what = "cannot list the folder of checkpoints", .got = error.message()});
  return names;
}

// The step that a symlink names, complete or not.
std::optional<int64_t> step_of_link(const std::string& dir, const char* link) {
  std::error_code error;
  const fs::path target = fs::read_symlink(fs::path(dir) / link, error);
  if (error) return std::nullopt;
  return step_of(target.string());
}

void rename_or_throw(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw RunError({.where = to, .what = "cannot rename " + from + " to it", .got = std::strerror(errno)});
}

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);  // does not follow symlinks
  if (error) throw RunError({.where = path, .what = "cannot remove it", .got = error.message()});
}

void fsync_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw RunError({.where = path, .what = "cannot open the file", .got = std::strerror(errno)});
  const int result = ::fsync(fd);
  const int error_number = errno;
  ::close(fd);
  if (result != 0) throw RunError({.where = path, .what = "syncing failed", .got = std::strerror(error_number)});
}

std::optional<int64_t> step_of_latest(const std::string& dir) { return step_of_link(dir, "latest"); }

void point_to(const std::string& dir, const char* link, const std::string& name) {
  const std::string temporary = join(dir, kNewLink);
  ::unlink(temporary.c_str());
  if (::symlink(name.c_str(), temporary.c_str()) != 0)
    throw RunError({.where = temporary, .what = "cannot create the symlink", .got = std::strerror(errno)});
  rename_or_throw(temporary, join(dir, link));
  fsync_directory(dir);
}

// First renamed, so that a step_ folder is never half removed.
void remove_checkpoint(const std::string& dir, const std::string& name) {
  const std::string deleted = join(dir, kDeleted, name);
  remove_tree(deleted);
  rename_or_throw(join(dir, name), deleted);
  remove_tree(deleted);
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:08}", kStep, step); }

CheckpointWriter::CheckpointWriter(std::string checkpoints_dir, int64_t step)
    : dir_(std::move(checkpoints_dir)), name_(checkpoint_name(step)), folder_(join(dir_, kWriting, name_)) {
  DITRAIN_CHECK(step >= 0, "negative step");
  remove_tree(folder_);
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) throw RunError({.where = folder_, .what = "cannot create the folder", .got = error.message()});
}

CheckpointWriter::~CheckpointWriter() {
  std::error_code ignored;  // what stays is cleared by remove_stale_temporaries
  if (!committed_) fs::remove_all(folder_, ignored);
}

void CheckpointWriter::commit() {
  DITRAIN_CHECK(!committed_, "committed twice");
  DITRAIN_CHECK(is_complete(folder_), "a file of the checkpoint is missing in " + folder_);
  for (const char* file : kCheckpointFiles) fsync_file(join(folder_, file));
  fsync_directory(folder_);
  const std::string target = join(dir_, name_), replaced = join(dir_, kReplaced, name_);
  const bool replaces = fs::exists(target);
  if (replaces) {
    remove_tree(replaced);
    rename_or_throw(target, replaced);
  }
  try {
    rename_or_throw(folder_, target);
  } catch (...) {
    if (replaces) rename_or_throw(replaced, target);
    throw;
  }
  committed_ = true;
  fsync_directory(dir_);
  point_to(dir_, "latest", name_);
  remove_tree(replaced);
}

std::vector<int64_t> list_checkpoints(const std::string& dir) {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(dir))
    if (const auto step = step_of(name); step && is_complete(join(dir, name))) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::vector<std::string> checkpoints_to_resume(const std::string& dir) {
  std::vector<int64_t> steps = list_checkpoints(dir);
  std::reverse(steps.begin(), steps.end());
  if (const auto latest = step_of_latest(dir))
    std::stable_partition(steps.begin(), steps.end(), [&](int64_t step) { return step == *latest; });
  std::vector<std::string> folders;
  for (const int64_t step : steps) folders.push_back(join(dir, checkpoint_name(step)));
  return folders;
}

std::optional<std::string> latest_checkpoint(const std::string& dir) {
  const std::vector<std::string> folders = checkpoints_to_resume(dir);
  return folders.empty() ? std::nullopt : std::optional(folders.front());
}

void link_best(const std::string& dir, int64_t step) { point_to(dir, "best", checkpoint_name(step)); }

std::optional<int64_t> best_checkpoint(const std::string& dir) {
  const std::optional<int64_t> step = step_of_link(dir, "best");
  const std::vector<int64_t> steps = list_checkpoints(dir);
  return step && std::find(steps.begin(), steps.end(), *step) != steps.end() ? step : std::nullopt;
}

void prune_checkpoints(const std::string& dir, int64_t keep_last, int64_t keep_every) {
  DITRAIN_CHECK(keep_last >= 0 && keep_every >= 0, "negative number of checkpoints to keep");
  std::vector<int64_t> steps;
  try {
    steps = list_checkpoints(dir);
  } catch (const InputError& error) {
    log::warn("old checkpoints stay: {}", error.what());
  }
  const auto num_steps = static_cast<int64_t>(steps.size());
  const std::optional<int64_t> latest = step_of_latest(dir), best = step_of_link(dir, "best");
  for (int64_t i = 0; i < num_steps - std::max<int64_t>(keep_last, 1); ++i) {
    const int64_t step = steps[static_cast<size_t>(i)];
    if (step == latest || step == best || (keep_every > 0 && step % keep_every == 0)) continue;
    try {
      remove_checkpoint(dir, checkpoint_name(step));
    } catch (const RunError& error) {
      log::warn("an old checkpoint stays: {}", error.what());
    }
  }
}

std::vector<std::string> discard_checkpoints_after(const std::string& dir, int64_t step) {
  std::vector<std::string> aside;
  for (const int64_t later : list_checkpoints(dir)) {
    if (later <= step) continue;
    const std::string name = join(dir, kDiscarded, checkpoint_name(later));
    aside.push_back(name);
    for (int again = 2; fs::exists(aside.back()); ++again) aside.back() = fmt::format("{}_{}", name, again);
    rename_or_throw(join(dir, checkpoint_name(later)), aside.back());
  }
  if (!aside.empty()) fsync_directory(dir);
  return aside;
}

void remove_discarded(const std::string& dir) {
  for (const std::string& name : names_in(dir)) {
    if (!name.starts_with(fmt::format("{}{}", kDiscarded, kStep))) continue;
    try {
      remove_checkpoint(dir, name);
    } catch (const RunError& error) {
      log::warn("a discarded checkpoint stays: {}", error.what());
    }
  }
}

void remove_stale_temporaries(const std::string& dir) {
  for (const std::string& name : names_in(dir)) {
    const std::string path = join(dir, name);
    if (name.starts_with(kReplaced)) {
      const std::string original = join(dir, name.substr(kReplaced.size()));
      if (step_of(name.substr(kReplaced.size())) && !fs::exists(original) && is_complete(path)) {
        rename_or_throw(path, original);
        fsync_directory(dir);
        continue;
      }
    }
    const bool temporary = name == kNewLink || name.starts_with(fmt::format("{}{}", kWriting, kStep)) ||
                           name.starts_with(fmt::format("{}{}", kReplaced, kStep)) ||
                           name.starts_with(fmt::format("{}{}", kDeleted, kStep)) ||
                           name.starts_with(fmt::format("{}{}{}", kDeleted, kDiscarded, kStep));
    if (temporary) remove_tree(path);
  }
}

}  // namespace ditrain::io
