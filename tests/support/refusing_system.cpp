// Preloaded into a program, a system that refuses what memory tiers ask it for, as its environment says:
// DITRAIN_TEST_REFUSES names what (mlock, io_uring, huge pages of 2 MiB, o_direct, fdatasync), DITRAIN_TEST_FREE_BYTES
// is the space of every disk, and once the path DITRAIN_TEST_DISK_BREAKS_AT exists, files without a name can neither be
// read nor written.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

#include "next_function.hpp"

namespace {

bool refuses(const char* what) {
  const char* refused = std::getenv("DITRAIN_TEST_REFUSES");
  return refused != nullptr && std::strstr(refused, what) != nullptr;
}

bool is_broken(int fd) {
  const char* path = std::getenv("DITRAIN_TEST_DISK_BREAKS_AT");
  struct stat file {};
  return path != nullptr && ::fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_nlink == 0 &&
         ::access(path, F_OK) == 0;
}

}  // namespace

extern "C" {

int mlock2(const void* data, size_t bytes, unsigned flags) noexcept {
  if (refuses("mlock")) return errno = EPERM, -1;
  return int(syscall(SYS_mlock2, data, bytes, flags));
}

void* mmap(void* at, size_t bytes, int access, int flags, int fd, off_t offset) noexcept {
  if ((flags & MAP_HUGETLB) != 0 && refuses("huge")) return errno = ENOMEM, MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, access, flags, fd, offset));
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  if ((flags & O_DIRECT) != 0 && refuses("o_direct")) return errno = EINVAL, -1;
  return int(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int io_uring_queue_init(unsigned entries, struct io_uring* ring, unsigned flags) {
  static const auto real = next(io_uring_queue_init, "io_uring_queue_init");
  return refuses("io_uring") ? -EPERM : real(entries, ring, flags);
}

int statvfs(const char* path, struct statvfs* space) noexcept {
  static const auto real = next(statvfs, "statvfs");
  const int result = real(path, space);
  if (const char* free = std::getenv("DITRAIN_TEST_FREE_BYTES"); result == 0 && free != nullptr)
    space->f_bavail = std::strtoull(free, nullptr, 10) / space->f_frsize;
  return result;
}

int fdatasync(int fd) {
  static const auto real = next(fdatasync, "fdatasync");
  return refuses("fdatasync") ? (errno = EIO, -1) : real(fd);
}

ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  static const auto real = next(pread, "pread");
  return is_broken(fd) ? (errno = EIO, -1) : real(fd, data, bytes, offset);
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  static const auto real = next(pwrite, "pwrite");
  return is_broken(fd) ? (errno = EIO, -1) : real(fd, data, bytes, offset);
}
}
