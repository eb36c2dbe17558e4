// Preloaded into a program, a system in which one call goes wrong once: DITRAIN_TEST_TRAP says "CALL PATH ACTION", as
// "pread step_00000004/model 5". The call is the first of its name (open, stat, lstat, readlink, read, pread, pwrite,
// rename, symlink, fcntl) whose file has PATH in its path. ACTION is an errno with which the call fails, "stop" (the
// process stops itself before the call) or "sleep:SECONDS" (the call takes longer). DITRAIN_TEST_TRAP_RANK: only in the
// process of this MPI rank.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "next_function.hpp"

namespace {

struct Trap {
  char call[16] = {}, path[256] = {}, action[32] = {};
  std::atomic<bool> armed{false};

  Trap() {
    const char *trap = std::getenv("DITRAIN_TEST_TRAP"), *only = std::getenv("DITRAIN_TEST_TRAP_RANK");
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    if (trap == nullptr || std::sscanf(trap, "%15s %255s %31s", call, path, action) != 3) return;
    armed = only == nullptr || (rank != nullptr && std::strcmp(only, rank) == 0);
  }
};

// Whether the call fails, with errno set.
bool fails(const char* call, const char* path) {
  static Trap trap;
  if (!trap.armed || std::strcmp(call, trap.call) != 0 || std::strstr(path, trap.path) == nullptr) return false;
  if (!trap.armed.exchange(false)) return false;
  double seconds = 0;
  if (std::strcmp(trap.action, "stop") == 0) return ::raise(SIGSTOP), false;
  if (std::sscanf(trap.action, "sleep:%lf", &seconds) == 1) return ::usleep(useconds_t(seconds * 1e6)), false;
  errno = std::atoi(trap.action);
  return true;
}

bool fails(const char* call, int fd) {
  char link[64], path[4096] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  static const auto real = next(readlink, "readlink");
  return real(link, path, sizeof path - 1) > 0 && fails(call, path);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  static const auto real = next(open, "open");
  va_list arguments;
  va_start(arguments, flags);
  const int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  return fails("open", path) ? -1 : real(path, flags, mode);
}

int stat(const char* path, struct stat* info) noexcept {
  static const auto real = next(stat, "stat");
  return fails("stat", path) ? -1 : real(path, info);
}

int lstat(const char* path, struct stat* info) noexcept {
  static const auto real = next(lstat, "lstat");
  return fails("lstat", path) ? -1 : real(path, info);
}

ssize_t readlink(const char* path, char* target, size_t bytes) noexcept {
  static const auto real = next(readlink, "readlink");
  return fails("readlink", path) ? -1 : real(path, target, bytes);
}

ssize_t read(int fd, void* data, size_t bytes) {
  static const auto real = next(read, "read");
  return fails("read", fd) ? -1 : real(fd, data, bytes);
}

ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  static const auto real = next(pread, "pread");
  return fails("pread", fd) ? -1 : real(fd, data, bytes, offset);
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  static const auto real = next(pwrite, "pwrite");
  return fails("pwrite", fd) ? -1 : real(fd, data, bytes, offset);
}

int rename(const char* from, const char* to) noexcept {
  static const auto real = next(rename, "rename");
  return fails("rename", from) ? -1 : real(from, to);
}

int symlink(const char* target, const char* path) noexcept {
  static const auto real = next(symlink, "symlink");
  return fails("symlink", path) ? -1 : real(target, path);
}

int fcntl(int fd, int command, ...) {
  static const auto real = next(fcntl, "fcntl");
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return fails("fcntl", fd) ? -1 : real(fd, command, argument);
}
}
