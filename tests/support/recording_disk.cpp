// Preloaded into a program, records what it does to files and folders below DITRAIN_TEST_DISK: the order of creations,
// writes, renames, removals and syncs of all processes of a job, each with its content, and the lines of the log that
// announce something. disk_states.hpp builds from it what a disk may hold after a power cut.
//
// DITRAIN_TEST_RECORD names the file of records. A record is one line, then as many raw bytes as its last number says:
//   KIND PROCESS FOLDER_OR_FILE OTHER OFFSET BYTES      with inode numbers for files and folders
// kinds: create, mkdir, link (bytes: name; for link a zero byte and the target), remove (name), rename (both names with
// a zero byte between them), write, size (OFFSET is the new size), sync (the places in the program that asked for it),
// say (a line of the log).
// An operation and its record are one under a lock, so that their order is the order on disk.
// Not seen, because the C library makes them without a call that can be replaced: what FILE streams write.
#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

#include "next_function.hpp"

namespace {

std::recursive_mutex& threads() {
  static std::recursive_mutex mutex;
  return mutex;
}

const std::string& root() {
  static const std::string path = std::getenv("DITRAIN_TEST_DISK") ? std::getenv("DITRAIN_TEST_DISK") : "";
  return path;
}

int records() {
  static const int fd = int(syscall(SYS_openat, AT_FDCWD, std::getenv("DITRAIN_TEST_RECORD"),
                                    O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  return fd;
}

// One operation of one thread of one process at a time.
class Turn {
 public:
  Turn() : lock_(threads()) { flock(records(), LOCK_EX); }
  ~Turn() { flock(records(), LOCK_UN); }

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

void record(const char* kind, ino_t file, ino_t other, off_t offset, std::string_view bytes) {
  const int error_number = errno;
  char head[160];
  const int length = std::snprintf(head, sizeof head, "%s %d %lu %lu %ld %zu\n", kind, int(getpid()),
                                   (unsigned long)file, (unsigned long)other, long(offset), bytes.size());
  const std::string all = std::string(head, size_t(length)) + std::string(bytes);
  for (size_t done = 0; done < all.size();) {
    const long n = syscall(SYS_write, records(), all.data() + done, all.size() - done);
    if (n <= 0) abort();
    done += size_t(n);
  }
  errno = error_number;
}

bool is_below(const std::string& path) {
  return !root().empty() && (path == root() || path.compare(0, root().size() + 1, root() + "/") == 0);
}

// The path of an open file; empty if it is not below the root.
std::string path_of(int fd) {
  char path[PATH_MAX];
  const ssize_t n = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  const std::string found(path, n > 0 ? size_t(n) : 0);
  return is_below(found) ? found : "";
}

// A name in a folder below the root. `folder` is 0 elsewhere.
struct Entry {
  ino_t folder = 0;
  std::string name = {};

  Entry(int at, const char* given) {
    if (root().empty() || given == nullptr) return;
    std::string path = given;
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const size_t cut = path.rfind('/');
    const std::string dir = cut == path.npos ? "." : cut == 0 ? "/" : path.substr(0, cut);
    const int fd = int(syscall(SYS_openat, at, dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    if (fd < 0) return;
    struct stat info {};
    if (!path_of(fd).empty() && ::fstat(fd, &info) == 0) folder = info.st_ino;
    syscall(SYS_close, fd);
    name = cut == path.npos ? path : path.substr(cut + 1);
  }
  explicit operator bool() const { return folder != 0; }
};

bool exists(int at, const char* path, struct stat* info) {
  const int error_number = errno;
  const bool there = ::fstatat(at, path, info, AT_SYMLINK_NOFOLLOW) == 0;
  errno = error_number;
  return there;
}

ino_t inode_of(int fd, off_t* size = nullptr) {
  struct stat info {};
  if (path_of(fd).empty() || ::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return 0;
  if (size != nullptr) *size = info.st_size;
  return info.st_ino;
}

int open_at(int at, const char* path, int flags, int mode) {
  const auto real = [&] { return int(syscall(SYS_openat, at, path, flags, mode)); };
  if ((flags & (O_CREAT | O_TRUNC)) == 0 || root().empty()) return real();
  const Entry entry(at, path);
  if (!entry) return real();
  const Turn turn;
  struct stat before {};
  const bool was_there = exists(at, path, &before);
  const int fd = real();
  if (fd < 0) return fd;
  if (!was_there)
    record("create", entry.folder, inode_of(fd), 0, entry.name);
  else if ((flags & O_TRUNC) != 0)
    record("size", inode_of(fd), 0, 0, "");
  return fd;
}

template <class Call>
ssize_t written(int fd, off_t offset, const void* data, Call&& call) {
  if (root().empty() || path_of(fd).empty()) return call();
  const Turn turn;
  off_t size = 0;
  const ino_t file = inode_of(fd, &size);
  if (file != 0 && offset < 0) offset = (fcntl(fd, F_GETFL) & O_APPEND) != 0 ? size : lseek(fd, 0, SEEK_CUR);
  const ssize_t n = call();
  if (file != 0 && n > 0) record("write", file, 0, offset, {static_cast<const char*>(data), size_t(n)});
  return n;
}

// The innermost two places in the program itself that led here.
std::string callers() {
  void* frames[16];
  const int count = backtrace(frames, 16);
  std::string places;
  int found = 0;
  static const void* own_base = [] {
    Dl_info own{};
    dladdr(reinterpret_cast<void*>(&record), &own);
    return own.dli_fbase;
  }();
  for (int i = 0; i < count && found < 2; ++i) {
    Dl_info info{};
    if (dladdr(frames[i], &info) == 0 || info.dli_fbase == own_base) continue;
    places += " " + std::to_string(static_cast<char*>(frames[i]) - static_cast<char*>(info.dli_fbase));
    ++found;
  }
  return places;
}

template <class Call>
int synced(int fd, Call&& call) {
  if (root().empty() || path_of(fd).empty()) return call();
  const Turn turn;
  struct stat info {};
  const int result = call();
  if (result == 0 && ::fstat(fd, &info) == 0) record("sync", info.st_ino, 0, 0, callers());
  return result;
}

template <class Call>
int sized(int fd, off_t bytes, Call&& call) {
  if (root().empty() || path_of(fd).empty()) return call();
  const Turn turn;
  const int result = call();
  if (result == 0) record("size", inode_of(fd), 0, bytes, "");
  return result;
}

template <class Call>
int removed(int at, const char* path, Call&& call) {
  const Entry entry(at, path);
  if (!entry) return call();
  const Turn turn;
  const int result = call();
  if (result == 0) record("remove", entry.folder, 0, 0, entry.name);
  return result;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  return open_at(AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  return open_at(AT_FDCWD, path, flags, mode);
}

int openat(int at, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  return open_at(at, path, flags, mode);
}

ssize_t write(int fd, const void* data, size_t bytes) {
  return written(fd, -1, data, [&] { return syscall(SYS_write, fd, data, bytes); });
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return written(fd, offset, data, [&] { return syscall(SYS_pwrite64, fd, data, bytes, offset); });
}

ssize_t pwrite64(int fd, const void* data, size_t bytes, off_t offset) { return pwrite(fd, data, bytes, offset); }

ssize_t writev(int fd, const struct iovec* parts, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  return written(fd, -1, all.data(), [&] { return syscall(SYS_writev, fd, parts, count); });
}

int ftruncate(int fd, off_t bytes) noexcept {
  return sized(fd, bytes, [&] { return int(syscall(SYS_ftruncate, fd, bytes)); });
}

int ftruncate64(int fd, off_t bytes) noexcept { return ftruncate(fd, bytes); }

int fsync(int fd) {
  return synced(fd, [&] { return int(syscall(SYS_fsync, fd)); });
}

int fdatasync(int fd) {
  return synced(fd, [&] { return int(syscall(SYS_fdatasync, fd)); });
}

int mkdir(const char* path, mode_t mode) noexcept {
  const Entry entry(AT_FDCWD, path);
  if (!entry) return int(syscall(SYS_mkdir, path, mode));
  const Turn turn;
  const int result = int(syscall(SYS_mkdir, path, mode));
  struct stat info {};
  if (result == 0 && exists(AT_FDCWD, path, &info)) record("mkdir", entry.folder, info.st_ino, 0, entry.name);
  return result;
}

int symlink(const char* target, const char* path) noexcept {
  const Entry entry(AT_FDCWD, path);
  if (!entry) return int(syscall(SYS_symlink, target, path));
  const Turn turn;
  const int result = int(syscall(SYS_symlink, target, path));
  if (result == 0) record("link", entry.folder, 0, 0, entry.name + '\0' + target);
  return result;
}

int rename(const char* from, const char* to) noexcept {
  const Entry old_entry(AT_FDCWD, from), new_entry(AT_FDCWD, to);
  if (!old_entry || !new_entry) return int(syscall(SYS_rename, from, to));
  const Turn turn;
  const int result = int(syscall(SYS_rename, from, to));
  if (result == 0) record("rename", old_entry.folder, new_entry.folder, 0, old_entry.name + '\0' + new_entry.name);
  return result;
}

int unlink(const char* path) noexcept {
  return removed(AT_FDCWD, path, [&] { return int(syscall(SYS_unlink, path)); });
}

int rmdir(const char* path) noexcept {
  return removed(AT_FDCWD, path, [&] { return int(syscall(SYS_rmdir, path)); });
}

int unlinkat(int at, const char* path, int flags) noexcept {
  return removed(at, path, [&] { return int(syscall(SYS_unlinkat, at, path, flags)); });
}

int remove(const char* path) noexcept {
  struct stat info {};
  return exists(AT_FDCWD, path, &info) && S_ISDIR(info.st_mode) ? rmdir(path) : unlink(path);
}

// The log prints its lines so.
int fputs(const char* text, FILE* stream) {
  static const auto real = next(fputs, "fputs");
  if (!root().empty() && stream == stdout) {
    const Turn turn;
    record("say", 0, 0, 0, text);
  }
  return real(text, stream);
}
}
