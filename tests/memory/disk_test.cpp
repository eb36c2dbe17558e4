// The disk tier on file systems that cannot all that a local disk can, and on a queue whose kernel refuses; memory that
// may not be pinned. Systems are pretended: this program's own open, fallocate, statvfs, mlock2 and io_uring_queue_init
// stand in for those of the C library and liburing.
#include <fcntl.h>
#include <liburing.h>
#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "../../src/memory/disk_queue.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/memory/backing.hpp"
#include "ditrain/platform/pages.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using namespace ditrain::memory;

namespace {

// What the file system that is pretended lacks.
struct Lacks {
  std::atomic<bool> direct{false}, nameless{false}, fallocate{false}, space{false};
  std::atomic<int> interruptions{0};       // fallocate is interrupted so often first
  std::atomic<int> mlock{0}, io_uring{0};  // errors with which they are refused
} lacks;

constexpr size_t kBytes = size_t{9} << 20;  // more than the queue has under way at once

std::unique_ptr<Backing> disk_in(const std::string& folder, size_t bytes = kBytes) {
  return make_disk({.bytes = bytes, .folder = folder});
}

platform::PageBlock filled(unsigned seed) {
  platform::PageBlock block(kBytes, platform::PagePolicy::kPlain);
  for (size_t i = 0; i < kBytes; ++i) block.data()[i] = std::byte((i * 2654435761u + seed) >> 13);
  return block;
}

bool gives_back(Backing& disk) {
  const auto data = filled(1);
  const platform::PageBlock back(kBytes, platform::PagePolicy::kPlain);
  disk.write(0, data.data(), kBytes);
  disk.read(0, back.data(), kBytes);
  return std::memcmp(data.data(), back.data(), kBytes) == 0;
}

std::string all_notes(const Backing& disk) {
  std::string text;
  for (const std::string& note : disk.notes()) text += note + "\n";
  return text;
}

// A file that a queue reads, written without one.
struct File {
  File() {
    fd = ::open(folder.path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    REQUIRE(::pwrite(fd, data.data(), kBytes, 0) == ssize_t(kBytes));
  }
  ~File() { ::close(fd); }
  const TemporaryFolder folder;
  const platform::PageBlock data = filled(2);
  int fd = -1;
};

std::atomic<int> refusals{0};  // so many calls from the second on are refused with
std::atomic<int> refused_with{0};
std::atomic<int> calls{0};

int failing_submit(io_uring* ring, unsigned wait) {
  if (calls++ == 0 || refusals == 0) return io_uring_submit_and_wait(ring, wait);
  --refusals;
  if (refused_with == ENOMEM) io_uring_submit(ring);  // requests are under way when it fails
  return -refused_with;
}

}  // namespace

extern "C" int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & (O_CREAT | __O_TMPFILE)) != 0) {
    va_list rest;
    va_start(rest, flags);
    mode = va_arg(rest, mode_t);
    va_end(rest);
  }
  if ((lacks.direct && (flags & O_DIRECT) != 0) || (lacks.nameless && (flags & __O_TMPFILE) == __O_TMPFILE))
    return errno = EINVAL, -1;
  return int(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

extern "C" int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (lacks.interruptions > 0) return --lacks.interruptions, errno = EINTR, -1;
  if (lacks.fallocate) return errno = EOPNOTSUPP, -1;
  return int(syscall(SYS_fallocate, fd, mode, offset, bytes));
}

extern "C" int statvfs(const char* path, struct statvfs* space) noexcept {
  struct statfs system {};
  if (::statfs(path, &system) != 0) return -1;
  *space = {};
  space->f_frsize = 4096, space->f_blocks = 1 << 20, space->f_bavail = lacks.space ? 1 : 1 << 20;
  return 0;
}

extern "C" int mlock2(const void* data, size_t bytes, unsigned flags) noexcept {
  if (lacks.mlock != 0) return errno = lacks.mlock, -1;
  return int(syscall(SYS_mlock2, data, bytes, flags));
}

extern "C" int io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
  io_uring_params params{};
  params.flags = flags;
  return lacks.io_uring != 0 ? -lacks.io_uring : io_uring_queue_init_params(entries, ring, &params);
}

TEST_CASE("a disk tier whose file system has no O_DIRECT goes through the page cache and says so") {
  const TemporaryFolder folder;
  lacks.direct = true;
  const auto disk = disk_in(folder.path());
  lacks.direct = false;
  CHECK_THAT(all_notes(*disk), Catch::Contains("page cache") && Catch::Contains("has no O_DIRECT"));
  CHECK(gives_back(*disk));
}

TEST_CASE("a disk tier whose file system has no nameless files leaves nothing behind") {
  const TemporaryFolder folder;
  lacks.nameless = true;
  const auto disk = disk_in(folder.path());
  lacks.nameless = false;
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK(gives_back(*disk));
}

TEST_CASE("a disk tier whose file system cannot preallocate asks for the free space instead") {
  const TemporaryFolder folder;
  lacks.fallocate = true, lacks.interruptions = 3;
  CHECK(gives_back(*disk_in(folder.path())));
  CHECK(lacks.interruptions == 0);
  lacks.space = true;
  CHECK_THROWS_WITH(disk_in(folder.path()), Catch::Contains("not enough free space, 4.0 KiB free") &&
                                                Catch::Contains("with 9.0 MiB free; try --set memory.disk_path"));
  lacks.fallocate = lacks.space = false;
}

TEST_CASE("ranks of a node need free space for all of them") {
  const TemporaryFolder folder;
  const TierSetup half{.bytes = size_t{2} << 30, .folder = folder.path()};  // of 4 GiB
  CHECK_NOTHROW(check_disk(half, 2));
  CHECK_THROWS_AS(check_disk(half, 3), InputError);
  CHECK_THROWS_WITH(check_disk(half, 3), Catch::Contains("2.00 GiB free for each of the 3 ranks of a node"));
}

TEST_CASE("bulk memory that may not be pinned is used all the same and names the limit") {
  lacks.mlock = EPERM;  // of a process whose limit is 0
  const auto bulk = make_bulk_memory({.bytes = kBytes});
  lacks.mlock = 0;
  CHECK_THAT(all_notes(*bulk),
             Catch::Contains("the bulk tier is not pinned (mlock: Operation not permitted): ulimit -l"));
  CHECK(gives_back(*bulk));
}

TEST_CASE("a disk tier whose kernel refuses io_uring works without it and says what would allow it") {
  const TemporaryFolder folder;
  lacks.io_uring = ENOMEM;
  const auto disk = disk_in(folder.path());
  lacks.io_uring = 0;
  CHECK_THAT(all_notes(*disk), Catch::Contains("pread and pwrite: io_uring: Cannot allocate memory; ulimit -l"));
  CHECK(gives_back(*disk));
}

TEST_CASE("what would allow io_uring is told by its setting and by the error") {
  const TemporaryFolder root;
  const std::string folder = root / "proc/sys/kernel";
  std::filesystem::create_directories(folder);
  CHECK_THAT(what_allows_io_uring(EPERM, root.path()), Catch::Contains("seccomp"));  // a kernel without the setting
  for (const char* value : {"0", "1", "2"}) {
    std::ofstream(folder + "/io_uring_disabled") << value << std::endl;
    const bool disabled = *value != '0';
    CHECK((what_allows_io_uring(EPERM, root.path()) == "sysctl kernel.io_uring_disabled=0 (as root)") == disabled);
    CHECK_THAT(what_allows_io_uring(ENOSYS, root.path()), Catch::Contains("Linux 5.6"));
    CHECK_THAT(what_allows_io_uring(EMFILE, root.path()), Catch::Contains("ulimit -n"));
  }
  CHECK(what_allows_io_uring(EFAULT, root.path()).empty());
}

TEST_CASE("a folder in RAM is no disk") {
  struct statfs system {};
  if (::statfs("/dev/shm", &system) != 0 || system.f_type != TMPFS_MAGIC || ::access("/dev/shm", W_OK) != 0)
    SKIP("/dev/shm is no tmpfs");
  unsetenv("DITRAIN_DISK_IN_RAM");
  CHECK_THROWS_AS(disk_in("/dev/shm"), InputError);
  CHECK_THROWS_WITH(disk_in("/dev/shm"), Catch::Contains("RAM") && Catch::Contains("memory.disk_path"));
  setenv("DITRAIN_DISK_IN_RAM", "1", 1);
  CHECK_THAT(all_notes(*disk_in("/dev/shm")), Catch::Contains("DITRAIN_DISK_IN_RAM"));
}

TEST_CASE("a queue asks a busy kernel again") {
  const File file;
  const platform::PageBlock back(kBytes, platform::PagePolicy::kPlain);
  refused_with = GENERATE(EAGAIN, EBUSY, EINTR);
  refusals = 5, calls = 0;
  DiskQueue queue(failing_submit);
  if (!queue.refusal().empty()) SKIP("io_uring: " + queue.refusal());
  CHECK(queue.transfer(file.fd, DiskOperation::kRead, 0, back.data(), kBytes).empty());
  CHECK(refusals == 0);
  CHECK(std::memcmp(back.data(), file.data.data(), kBytes) == 0);
}

TEST_CASE("a queue that is refused returns when the kernel no longer writes, and can be used again") {
  const File file;
  const platform::PageBlock back(kBytes, platform::PagePolicy::kPlain);
  DiskQueue queue(failing_submit);
  if (!queue.refusal().empty()) SKIP("io_uring: " + queue.refusal());
  for (int i = 0; i < 20; ++i) {
    refused_with = ENOMEM, refusals = 1 << 20, calls = 0;
    CHECK_THAT(queue.transfer(file.fd, DiskOperation::kRead, 0, back.data(), kBytes),
               Catch::Contains("io_uring") && Catch::Contains(std::strerror(ENOMEM)));
    std::memset(back.data(), 0xAB, kBytes);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(std::all_of(back.data(), back.data() + kBytes, [](std::byte b) { return b == std::byte{0xAB}; }));
    refusals = 0;
    CHECK(queue.transfer(file.fd, DiskOperation::kRead, 0, back.data(), kBytes).empty());
    CHECK(std::memcmp(back.data(), file.data.data(), kBytes) == 0);
  }
}

TEST_CASE("what the disk answers to a transfer of a queue is told, and the next transfer works") {
  const File file;
  const platform::PageBlock back(kBytes, platform::PagePolicy::kPlain);
  const int read_only = ::open(("/proc/self/fd/" + std::to_string(file.fd)).c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(read_only >= 0);
  DiskQueue queue;
  if (!queue.refusal().empty()) SKIP("io_uring: " + queue.refusal());
  CHECK_THAT(queue.transfer(read_only, DiskOperation::kWrite, 0, back.data(), kBytes),
             Catch::Contains(std::strerror(EBADF)));
  REQUIRE(::ftruncate(file.fd, kBytes / 2) == 0);  // what comes first succeeds
  CHECK_THAT(queue.transfer(file.fd, DiskOperation::kRead, 0, back.data(), kBytes),
             Catch::Contains("shorter than it was made"));
  CHECK(queue.transfer(file.fd, DiskOperation::kRead, 0, back.data(), kBytes / 2).empty());
  CHECK(std::memcmp(back.data(), file.data.data(), kBytes / 2) == 0);
  ::close(read_only);
}
