#include "ditrain/files/checkpoint_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/files/files.hpp"

namespace ditrain::files {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step_";
constexpr const char *kLatest = "latest", *kBest = "best";
// The kinds of hidden names in a checkpoints folder; remove_stale_temporaries knows no others.
constexpr std::string_view kWriting = ".tmp_";         // being written by a CheckpointWriter; a link before its rename
constexpr std::string_view kReplaced = ".old_";        // moved aside while its replacement takes the name
constexpr std::string_view kDeleted = ".deleted_";     // being removed
constexpr std::string_view kDiscarded = "discarded_";  // of a continuation that a resumed run has left

std::string join(const std::string& dir, std::string_view a, std::string_view b = "") {
  return (fs::path(dir) / fmt::format("{}{}", a, b)).string();
}

// With a suffix of its own: what is left of another run, or lives on, never has the same name.
std::string hidden(const std::string& dir, std::string_view kind, const std::string& name) {
  return join(dir, kind, fmt::format("{}.{}", name, unique_suffix()));
}

std::optional<int64_t> step_of(const std::string& name) {
  int64_t step = -1;
  if (!name.starts_with(kStep)) return std::nullopt;
  std::from_chars(name.data() + kStep.size(), name.data() + name.size(), step);
  // Only the one canonical spelling counts, so that a step has one folder.
  if (step < 0 || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

bool is_complete(const std::string& folder) { return missing_file(folder).empty(); }

std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(dir, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  while (!error && it != fs::directory_iterator()) {
    names.push_back(it->path().filename().string());
    it.increment(error);
  }
  if (error) fail_to_read(dir, "cannot list the folder of checkpoints", error.value());
  return names;
}

// The steps of all checkpoints, complete or not, increasing.
std::vector<int64_t> steps_in(const std::string& dir) {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(dir))
    if (const auto step = step_of(name)) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

// The step that a symlink names, complete or not; none if the link does not exist.
std::optional<int64_t> step_of_link(const std::string& dir, const std::string& link) {
  std::error_code error;
  const fs::path path = fs::path(dir) / link, target = fs::read_symlink(path, error);
  if (!error) return step_of(target.string());
  for (const std::errc none : {std::errc::no_such_file_or_directory, std::errc::not_a_directory,
                               std::errc::invalid_argument})  // the last: no link
    if (error == none) return std::nullopt;
  throw RunError({.where = path.string(), .what = "cannot read the symlink", .got = error.message()});
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

// exFAT, many SMB mounts and object stores.
bool has_no_symlinks(int error_number) {
  return error_number == EPERM || error_number == EOPNOTSUPP || error_number == ENOSYS;
}

void warn_of_no_symlinks(const std::string& dir, int error_number) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  log::warn(
      "{} takes no symlinks ({}): there is no `latest`, so that --resume auto takes the newest checkpoint, and no "
      "`best`, so that checkpoint.keep_last may remove the best one",
      dir, std::strerror(error_number));
}

// A folder in the place of a link, as copies that follow links have, is a copy of a checkpoint.
void make_room_for_link(const std::string& dir, const std::string& place) {
  std::error_code error;
  if (fs::symlink_status(place, error).type() != fs::file_type::directory || !is_complete(place)) return;
  const std::string deleted = hidden(dir, kDeleted, checkpoint_name(0));
  rename_or_throw(place, deleted);
  log::warn("{} was a folder, a copy of a checkpoint: it is a link from now on", place);
  try {
    remove_tree(deleted);
  } catch (const RunError& problem) {
    log::warn("what stood in the place of a link stays: {}", problem.what());
  }
}

// A symlink under a hidden name until it is put into its place, which needs no room on the disk any more. On a file
// system without symlinks: none, and what has its place goes, for it would name an older checkpoint.
class NewLink {
 public:
  NewLink(const std::string& dir, const char* link, const std::string& target)
      : dir_(dir), place_(join(dir, link)), path_(hidden(dir, kWriting, link)) {
    if (::symlink(target.c_str(), path_.c_str()) == 0) return;
    const int error_number = errno;
    if (!has_no_symlinks(error_number))
      throw RunError({.where = path_, .what = "cannot create the symlink", .got = std::strerror(error_number)});
    made_ = false;
    warn_of_no_symlinks(dir, error_number);
  }
  ~NewLink() {
    if (made_ && !wanted_) ::unlink(path_.c_str());
  }
  NewLink(const NewLink&) = delete;
  NewLink& operator=(const NewLink&) = delete;

  /// From now on it stays if it cannot be put: remove_stale_temporaries does it then.
  void keep() { wanted_ = true; }
  void put() {
    keep();
    make_room_for_link(dir_, place_);
    if (made_)
      rename_or_throw(path_, place_);
    else if (::unlink(place_.c_str()) != 0 && errno != ENOENT)
      throw RunError({.where = place_, .what = "cannot remove it", .got = std::strerror(errno)});
    fsync_directory(dir_);
  }

 private:
  std::string dir_, place_, path_;
  bool made_ = true, wanted_ = false;
};

// First renamed, so that a step_ folder is never half removed.
void remove_checkpoint(const std::string& dir, const std::string& name) {
  const std::string deleted = hidden(dir, kDeleted, name);
  rename_or_throw(join(dir, name), deleted);
  remove_tree(deleted);
}

void copy_synced(const std::string& from, const std::string& to, const Progress& moved) {
  std::ifstream in(from, std::ios::binary);
  FileWriter out(to);
  std::vector<char> part(size_t{1} << 20);
  do {
    in.read(part.data(), std::streamsize(part.size()));
    out.write(part.data(), size_t(in.gcount()));
    if (moved) moved();
  } while (in);
  if (!in.eof()) throw RunError({.where = from, .what = "cannot read the file"});
  out.finish();
}

// Whether it is one of the hidden names; `stem` has no suffix.
bool is_hidden_name(const std::string& stem) {
  if (stem == fmt::format("{}{}", kWriting, kLatest) || stem == fmt::format("{}{}", kWriting, kBest)) return true;
  for (const std::string& kind : {std::string(kWriting), std::string(kReplaced), std::string(kDeleted),
                                  fmt::format("{}{}", kDeleted, kDiscarded)})
    if (stem.starts_with(fmt::format("{}{}", kind, kStep))) return true;
  return false;
}

// When a symlink was made; none, which is before all others, if it is not there.
std::optional<std::pair<time_t, long>> time_of(const std::string& link) {
  struct stat info {};
  if (::lstat(link.c_str(), &info) == 0) return std::pair(info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  if (errno == ENOENT) return std::nullopt;
  throw RunError({.where = link, .what = "cannot find out when the symlink was made", .got = std::strerror(errno)});
}

// Whether a hidden link is what a commit would have put into the place of `latest`: its checkpoint is there, and nobody
// has made another `latest` since.
bool is_next_latest(const std::string& dir, const std::string& link) {
  const std::optional<int64_t> step = step_of_link(dir, link);
  return step && is_complete(join(dir, checkpoint_name(*step))) &&
         time_of(join(dir, link)) >= time_of(join(dir, kLatest));
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:08}", kStep, step); }

std::string missing_file(const std::string& folder) {
  for (const char* file : kCheckpointFiles) {
    const std::string path = (fs::path(folder) / file).string();
    std::error_code error;
    const fs::file_type type = fs::status(path, error).type();
    if (type == fs::file_type::none)
      throw RunError({.where = path, .what = "cannot find out whether the file is there", .got = error.message()});
    if (type != fs::file_type::regular) return file;
  }
  return "";
}

CheckpointWriter::CheckpointWriter(std::string checkpoints_dir, int64_t step)
    : dir_(std::move(checkpoints_dir)), name_(checkpoint_name(step)), folder_(hidden(dir_, kWriting, name_)) {
  DITRAIN_CHECK(step >= 0, "negative step");
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
  fsync_directory(folder_);
  NewLink latest(dir_, kLatest, name_);
  const std::string target = join(dir_, name_), replaced = hidden(dir_, kReplaced, name_);
  const bool replaces = fs::exists(target);
  if (replaces) rename_or_throw(target, replaced);
  try {
    rename_or_throw(folder_, target);
  } catch (...) {
    if (replaces) rename_or_throw(replaced, target);
    throw;
  }
  committed_ = true;
  latest.keep();
  fsync_directory(dir_);
  latest.put();
  if (replaces) try {
      remove_tree(replaced);
    } catch (const RunError& error) {
      log::warn("what a checkpoint has replaced stays: {}", error.what());
    }
}

std::vector<int64_t> list_checkpoints(const std::string& dir) {
  std::vector<int64_t> steps = steps_in(dir);
  std::erase_if(steps, [&](int64_t step) { return !is_complete(join(dir, checkpoint_name(step))); });
  return steps;
}

int64_t count_checkpoints(const std::string& dir) try {
  return int64_t(list_checkpoints(dir).size());
} catch (const Error&) {
  return 0;
}

std::vector<std::string> checkpoints_to_resume(const std::string& dir) {
  std::vector<int64_t> steps = steps_in(dir);
  std::reverse(steps.begin(), steps.end());
  if (const auto latest = step_of_link(dir, kLatest))
    std::stable_partition(steps.begin(), steps.end(), [&](int64_t step) { return step == *latest; });
  std::vector<std::string> folders;
  for (const int64_t step : steps) folders.push_back(join(dir, checkpoint_name(step)));
  return folders;
}

std::optional<std::string> latest_checkpoint(const std::string& dir) {
  for (const std::string& folder : checkpoints_to_resume(dir)) {
    const std::string missing = missing_file(folder);
    if (missing.empty()) return folder;
    log::warn("{} is passed over: {} is missing", folder, missing);
  }
  return std::nullopt;
}

void link_best(const std::string& dir, int64_t step) { NewLink(dir, kBest, checkpoint_name(step)).put(); }

std::optional<int64_t> best_checkpoint(const std::string& dir) {
  const std::optional<int64_t> step = step_of_link(dir, kBest);
  return step && is_complete(join(dir, checkpoint_name(*step))) ? step : std::nullopt;
}

void prune_checkpoints(const std::string& dir, int64_t keep_last, int64_t keep_every, const Progress& moved,
                       const std::string& in_use) {
  DITRAIN_CHECK(keep_last >= 0 && keep_every >= 0, "negative number of checkpoints to keep");
  std::vector<int64_t> steps;
  std::optional<int64_t> latest, best;
  try {
    steps = list_checkpoints(dir), latest = step_of_link(dir, kLatest), best = step_of_link(dir, kBest);
  } catch (const Error& error) {
    return log::warn("old checkpoints stay: {}", error.what());
  }
  const auto num_steps = static_cast<int64_t>(steps.size());
  for (int64_t i = 0; i < num_steps - std::max<int64_t>(keep_last, 1); ++i) {
    const int64_t step = steps[static_cast<size_t>(i)];
    if (step == latest || step == best || (keep_every > 0 && step % keep_every == 0)) continue;
    const fs::path used = in_use;  // a folder, or a file in it
    const auto is_here = [&, folder = join(dir, checkpoint_name(step))](const fs::path& path) {
      std::error_code error;
      return !path.empty() && fs::equivalent(path, folder, error);
    };
    if (is_here(used) || is_here(used.parent_path())) continue;
    try {
      remove_checkpoint(dir, checkpoint_name(step));
    } catch (const RunError& error) {
      log::warn("an old checkpoint stays: {}", error.what());
    }
    if (moved) moved();
  }
}

std::vector<std::string> discard_checkpoints_after(const std::string& dir, int64_t step) {
  std::vector<std::string> aside;
  // `latest` names a whole checkpoint at every moment.
  if (step_of_link(dir, kLatest) > step && is_complete(join(dir, checkpoint_name(step))))
    NewLink(dir, kLatest, checkpoint_name(step)).put();
  if (const auto best = step_of_link(dir, kBest); best > step) {  // a new one of this number was never measured
    log::warn("the best checkpoint was that of step {}, which is discarded: it is chosen anew", *best);
    if (::unlink(join(dir, kBest).c_str()) != 0 && errno != ENOENT)
      throw RunError({.where = join(dir, kBest), .what = "cannot remove it", .got = std::strerror(errno)});
  }
  for (const int64_t later : steps_in(dir)) {
    if (later <= step) continue;
    const std::string name = join(dir, kDiscarded, checkpoint_name(later));
    aside.push_back(name);
    for (int again = 2; fs::exists(aside.back()); ++again) aside.back() = fmt::format("{}_{}", name, again);
    rename_or_throw(join(dir, checkpoint_name(later)), aside.back());
  }
  return aside;
}

void remove_discarded(const std::string& dir, const Progress& moved) {
  for (const std::string& name : names_in(dir)) {
    if (!name.starts_with(fmt::format("{}{}", kDiscarded, kStep))) continue;
    try {
      remove_checkpoint(dir, name);
    } catch (const RunError& error) {
      log::warn("a discarded checkpoint stays: {}", error.what());
    }
    if (moved) moved();
  }
}

void keep_files(const std::string& from, const std::vector<std::string>& names, const std::string& dir, int64_t step,
                const Progress& moved) {
  const std::string name = checkpoint_name(step), folder = hidden(dir, kWriting, name);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw RunError({.where = folder, .what = "cannot create the folder", .got = error.message()});
  try {
    for (const std::string& file : names) {
      const std::string source = join(from, file), to = join(folder, file);
      fs::create_hard_link(source, to, error);
      if (error) copy_synced(source, to, moved);
    }
    fsync_directory(folder);
    if (fs::exists(join(dir, name))) remove_checkpoint(dir, name);
    rename_or_throw(folder, join(dir, name));
  } catch (...) {
    fs::remove_all(folder, error);
    throw;
  }
  fsync_directory(dir);
  fsync_directory(fs::path(dir).parent_path().string());
}

std::vector<int64_t> list_kept(const std::string& dir) { return steps_in(dir); }

void remove_stale_temporaries(const std::string& dir) {
  for (const std::string& name : names_in(dir)) {
    const std::string path = join(dir, name);
    const std::string stem = name.substr(0, name.find('.', 1));  // earlier versions had no suffix
    if (const std::string original = stem.starts_with(kReplaced) ? stem.substr(kReplaced.size()) : "";
        step_of(original) && !fs::exists(join(dir, original)) && is_complete(path)) {
      rename_or_throw(path, join(dir, original));
    } else if (stem == fmt::format("{}{}", kWriting, kLatest) && is_next_latest(dir, name)) {
      make_room_for_link(dir, join(dir, kLatest));
      rename_or_throw(path, join(dir, kLatest));
    } else if (is_hidden_name(stem)) {
      try {
        remove_tree(path);
      } catch (const RunError& error) {  // of another user, or read by a program over NFS; no name comes twice
        log::warn("what an earlier job left stays: {}", error.what());
      }
    }
  }
}

}  // namespace ditrain::files
