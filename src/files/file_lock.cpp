#include "ditrain/files/file_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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
#include "ditrain/files/files.hpp"

namespace ditrain::files {
namespace {

constexpr double kPatience_s = 3;  // for the ranks of a job that was killed, which end a moment after their launcher
constexpr std::chrono::milliseconds kPause(50);
constexpr int kMostRemoved = 100;
constexpr off_t kJoined = 1;  // the byte from which on those who join have a lock

struct flock lock_of(short type, off_t begin) {
  struct flock lock {};  // to the end, wherever that is
  lock.l_type = type, lock.l_whence = SEEK_SET, lock.l_start = begin;
  return lock;
}

}  // namespace

FileLock::FileLock(std::string path) : path_(std::move(path)), fd_(open()) {}

int FileLock::open() const {
  const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) throw InputError({.where = path_, .what = "cannot open the lock", .got = std::strerror(errno)});
  return fd;
}

bool FileLock::is_removed() const {
  struct stat mine {
  }, there{};
  if (::fstat(fd_, &mine) != 0) return false;
  if (::stat(path_.c_str(), &there) != 0) return errno == ENOENT;
  return mine.st_dev != there.st_dev || mine.st_ino != there.st_ino;
}

// What it says of its holder goes first: afterwards another process may have it.
FileLock::~FileLock() {
  if (locked_) (void)!::ftruncate(fd_, 0);
  ::close(fd_);
}

// The first byte stays with the process that locked; the others are for those who join. Whoever locks needs all.
FileLock::Attempt FileLock::try_lock() {
  Attempt attempt = set(F_WRLCK, 0);
  // Removed by the one before, at its end. Some file systems have no lasting numbers of files: what is locked stays so.
  for (int i = 0; i < kMostRemoved && attempt == Attempt::kLocked && is_removed(); ++i) {
    const int next = open();
    ::close(fd_);
    fd_ = next;
    attempt = set(F_WRLCK, 0);
  }
  locked_ = locked_ || attempt == Attempt::kLocked;
  return attempt;
}

FileLock::Attempt FileLock::share() { return set(F_RDLCK, kJoined); }

std::optional<pid_t> FileLock::surviving_process() const {
  struct flock first = lock_of(F_WRLCK, 0), others = lock_of(F_WRLCK, kJoined);
  first.l_len = kJoined;
  if (::fcntl(fd_, F_GETLK, &first) != 0 || first.l_type != F_UNLCK) return std::nullopt;
  if (::fcntl(fd_, F_GETLK, &others) != 0 || others.l_type == F_UNLCK) return std::nullopt;
  return std::max<pid_t>(others.l_pid, 0);
}

FileLock::Attempt FileLock::set(short type, off_t begin) {
  struct flock wanted = lock_of(type, begin);
  int result = 0;
  do {
    result = ::fcntl(fd_, F_SETLK, &wanted);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return Attempt::kLocked;
  if (errno == EAGAIN || errno == EACCES) return Attempt::kHeldByOther;
  reason_ = std::strerror(errno);
  return Attempt::kNoLocks;
}

FileLock::Attempt FileLock::lock_for_job(double patience_s, const std::function<void()>& waiting) {
  const double start = now_s();
  Attempt attempt = try_lock();
  if (attempt == Attempt::kHeldByOther && patience_s > 0 && waiting) waiting();
  while (attempt == Attempt::kHeldByOther && now_s() - start < patience_s) {
    std::this_thread::sleep_for(kPause);
    attempt = try_lock();
  }
  return attempt == Attempt::kLocked ? share() : attempt;
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
  if (holder.empty()) holder = "one that is starting or ending";
  if (const std::optional<pid_t> left = surviving_process())
    holder += "; its rank 0 has ended, but not " +
              (*left > 0 ? fmt::format("process {}", *left) : "a process on another node");
  return holder;
}

std::unique_ptr<FileLock> lock_output_folder(const std::string& folder) {
  make_output_folder(folder);
  auto lock = std::make_unique<FileLock>(folder + "/.lock");
  const FileLock::Attempt attempt = lock->lock_for_job(kPatience_s);
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

std::unique_ptr<FileLock> join_output_folder(const std::string& folder) {
  auto lock = std::make_unique<FileLock>(folder + "/.lock");
  if (lock->share() == FileLock::Attempt::kHeldByOther)
    throw RunError({.where = folder, .what = "rank 0 does not hold the folder any more: another process writes to it"});
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

}  // namespace ditrain::files
