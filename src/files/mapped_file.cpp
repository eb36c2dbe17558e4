#include "ditrain/files/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/files/files.hpp"

namespace ditrain::files {
namespace {

// The signal handler may not lock or allocate: a table of fixed size, written and read without locks.
struct Range {
  std::atomic<uintptr_t> begin{0};  ///< 0: free; kClaimed: being filled
  std::atomic<size_t> bytes{0};
  std::atomic<const char*> path{nullptr};
};
static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<const char*>::is_always_lock_free);

constexpr size_t kMaxRanges = 1 << 16;  // Linux allows 65530 mappings per process by default (vm.max_map_count)
constexpr size_t kNoPlace = kMaxRanges;
constexpr uintptr_t kClaimed = 1;  // no mapping begins there

constinit std::array<Range, kMaxRanges> ranges{};
constinit std::atomic<size_t> next_place{0};

/// Set before the handler is installed.
struct sigaction previous_action;
char message_begin[512];  // "PROGRAM: error: [rank 1 on HOST] "
size_t page_bytes;

size_t enter(const std::byte* data, size_t bytes, const char* path) {
  for (size_t tries = 0; tries < kMaxRanges; ++tries) {
    const size_t place = next_place++ % kMaxRanges;
    Range& range = ranges[place];
    uintptr_t free = 0;
    if (!range.begin.compare_exchange_strong(free, kClaimed)) continue;
    range.bytes = bytes, range.path = path;
    range.begin = reinterpret_cast<uintptr_t>(data);
    return place;
  }
  return kNoPlace;
}

void leave(size_t place) {
  if (place != kNoPlace) ranges[place].begin = 0;
}

/// The range that holds the address, up to the end of its last page. The thread that reads there keeps it alive.
const Range* find(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const Range& range : ranges) {
    const uintptr_t begin = range.begin;
    if (begin <= kClaimed || at < begin) continue;
    const size_t whole_pages = (range.bytes + page_bytes - 1) / page_bytes * page_bytes;
    if (at - begin < whole_pages) return &range;
  }
  return nullptr;
}

/// Text of a fixed size, made without allocation.
class FixedText {
 public:
  void add(std::string_view text) {
    const size_t n = std::min(text.size(), sizeof text_ - size_);
    std::memcpy(text_ + size_, text.data(), n);
    size_ += n;
  }
  void print() const { (void)!::write(STDERR_FILENO, text_, size_); }

 private:
  char text_[8192];  // PATH_MAX is 4096
  size_t size_ = 0;
};

[[noreturn]] void end_program(const Range& range) {
  static std::atomic_flag said = ATOMIC_FLAG_INIT;
  while (said.test_and_set()) ::pause();  // another thread says it and ends the process
  const char* const path = range.path;
  struct stat now {};
  const bool shorter = ::stat(path, &now) == 0 && static_cast<size_t>(now.st_size) < range.bytes;
  FixedText text;
  text.add(message_begin);
  text.add("[");
  text.add(path);
  text.add(shorter ? "] the file became shorter while it was being read; try again when no other program writes it\n"
                   : "] the file cannot be read any more; try to copy it, which shows what is wrong with it or with "
                     "its disk\n");
  text.print();
  ::_exit(kExitFailed);
}

void on_bus_error(int, siginfo_t* info, void*) {
  const int before = errno;
  const bool by_access = info->si_code > 0;
  if (by_access)
    if (const Range* range = find(info->si_addr)) end_program(*range);
  // Not ours: what was installed before meets the same fault again as soon as this returns.
  ::sigaction(SIGBUS, &previous_action, nullptr);
  if (!by_access) ::raise(SIGBUS);
  errno = before;
}

void install_handler() {
  page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const std::string begin = std::string(program_invocation_short_name) + ": error: " + log::of_rank();
  std::strncpy(message_begin, begin.c_str(), sizeof message_begin - 1);
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, nullptr, &previous_action);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path), place_(kNoPlace) {
  static std::once_flag once;
  std::call_once(once, install_handler);
  // O_NONBLOCK: opening a FIFO must not wait for ever.
  const int fd = open_to_read(path_, O_NONBLOCK);
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0, regular = known && S_ISREG(info.st_mode);
  bytes_ = regular ? static_cast<size_t>(info.st_size) : 0;
  void* address = bytes_ > 0 ? ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
  const int error_number = errno;
  ::close(fd);
  if (!known) fail_to_read(path_, "cannot read the file", error_number);
  if (!regular) throw InputError({.where = path_, .what = "not a regular file"});
  if (address == MAP_FAILED)
    throw RunError({.where = path_, .what = "cannot map the file", .got = std::strerror(error_number)});
  data_ = static_cast<const std::byte*>(address);
  if (data_ != nullptr) place_ = enter(data_, bytes_, path_.c_str());
}

MappedFile::~MappedFile() {
  leave(place_);
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), bytes_);
}

}  // namespace ditrain::files
