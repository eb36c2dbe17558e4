#include "ditrain/io/file_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "ditrain/base/error.hpp"

namespace ditrain::io {

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
