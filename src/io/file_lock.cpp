#include "ditrain/io/file_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>
#include <utility>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/io/files.hpp"

namespace ditrain::io {
namespace {

constexpr double kPatience_s = 3;  // for the ranks of a job that was killed, which end a moment after their launcher
constexpr std::chrono::milliseconds kPause(50);

}  // namespace

FileLock::FileLock(std::string path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw InputError({.where = path_, .what = "cannot open the lock", .got = std::strerror(errno)});
}

// What it says of its holder goes first: afterwards another process may have it.
FileLock::~FileLock() {
  if (locked_) (void)!::ftruncate(fd_, 0);
  ::close(fd_);
}

FileLock::Attempt FileLock::try_lock() {
  struct flock whole {};
  whole.l_type = F_WRLCK, whole.l_whence = SEEK_SET;
  if (::fcntl(fd_, F_SETLK, &whole) == 0) {
    locked_ = true;
    return Attempt::kLocked;
  }
  if (errno == EAGAIN || errno == EACCES || errno == EINTR) return Attempt::kHeldByOther;
  reason_ = std::strerror(errno);
  return Attempt::kNoLocks;
}

FileLock::Attempt FileLock::lock_within(double patience_s, const std::function<void()>& waiting) {
  const double start = now_s();
  Attempt attempt = try_lock();
  if (attempt == Attempt::kHeldByOther && patience_s > 0 && waiting) waiting();
  while (attempt == Attempt::kHeldByOther && now_s() - start < patience_s) {
    std::this_thread::sleep_for(kPause);
    attempt = try_lock();
  }
  return attempt;
}

void FileLock::describe(const std::string& holder) {
  errno = ENOSPC;  // of a write that is cut short
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, holder.data(), holder.size(), 0) != ssize_t(holder.size()))
    throw RunError({.where = path_, .what = "cannot write into the lock", .got = std::strerror(errno)});
}

std::string FileLock::holder() const {
  std::array<char, 1024> text{};
  const ssize_t n = ::pread(fd_, text.data(), text.size(), 0);
  std::string holder(text.data(), size_t(n > 0 ? n : 0));
  while (!holder.empty() && holder.back() == '\n') holder.pop_back();
  return holder;
}

std::unique_ptr<FileLock> lock_output_folder(const std::string& folder) {
  make_output_folder(folder);
  auto lock = std::make_unique<FileLock>(folder + "/.lock");
  const FileLock::Attempt attempt = lock->lock_within(kPatience_s);
  if (attempt == FileLock::Attempt::kHeldByOther)
    throw InputError({.where = folder,
                      .what = "another process writes to this folder",
                      .got = lock->holder(),
                      .hint = "one process at a time, or another folder"});
  if (attempt == FileLock::Attempt::kNoLocks)
    log::warn("{} cannot be locked ({}): nothing keeps a second process from writing into it", folder, lock->reason());
  lock->describe(this_process());
  return lock;
}

std::string this_process() {
  std::array<char, 256> host{}, start{};
  ::gethostname(host.data(), host.size() - 1);
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::strftime(start.data(), start.size(), "%F %T %z", ::localtime_r(&now, &parts));
  std::string job;
  for (const char* name : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"})
    if (const char* id = std::getenv(name); id != nullptr && job.empty()) job = fmt::format(", job {}", id);
  return fmt::format("host {}, process {}{}, since {}\n", host.data(), ::getpid(), job, start.data());
}

}  // namespace ditrain::io
