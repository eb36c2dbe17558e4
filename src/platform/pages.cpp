#include "ditrain/platform/pages.hpp"

#include <linux/magic.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/platform/limits.hpp"

namespace ditrain::platform {
namespace {

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

[[noreturn]] void refuse(size_t bytes, const char* why) {
  throw RunError({.where = "memory",
                  .what = "cannot map " + std::to_string(bytes) + " bytes: " + why,
                  .hint = "a smaller micro-batch, recomputation, or raising the limit (ulimit -v, cgroup)"});
}

size_t number_in(const std::string& file) {
  std::ifstream in(file);
  size_t number = 0;
  return in >> number ? number : 0;
}

// Several blocks and ranks may want pages: what each lacks adds up.
std::string no_explicit_pages(size_t bytes, const char* whose) {
  const std::string folder = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const size_t wanted = round_up(bytes, kHugePageBytes) / kHugePageBytes, all = number_in(folder + "nr_hugepages");
  const size_t free = number_in(folder + "free_hugepages"), reserved = number_in(folder + "resv_hugepages");
  const size_t left = free - std::min(free, reserved), lacking = std::max<size_t>(1, wanted - std::min(wanted, left));
  return "memory.pages: explicit: " + std::to_string(wanted) + " huge pages are wanted (" + whose + ") where " +
         std::to_string(left) + " are free: raise vm.nr_hugepages by " + std::to_string(lacking) +
         " for them (as root; for these alone: echo " + std::to_string(all + lacking) + " > " + folder +
         "nr_hugepages)";
}

std::string not_allowed(size_t bytes, const std::string& why) {
  return "memory.pages: the " + std::to_string(bytes / kHugePageBytes) +
         " huge pages that are reserved may not be used: " + why +
         "; a higher limit of the job (its cgroup: hugetlb.2MB.max)";
}

// Why the job may not take as many explicit huge pages; "": it may.
std::string why_not_explicit(size_t bytes) {
  const MemoryLimit left = explicit_huge_left();
  return left.bytes >= bytes ? "" : left.source + " leaves " + std::to_string(left.bytes / kHugePageBytes);
}

std::atomic<int64_t> num_mappings{0};

void* map(size_t bytes, int flags, int fd) {
  ++num_mappings;
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
}

char* map_anonymous(size_t bytes, size_t asked) {
  void* p = map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (p == MAP_FAILED) refuse(asked, std::strerror(errno));
  return static_cast<char*>(p);
}

}  // namespace

int64_t num_page_mappings() { return num_mappings; }

size_t page_bytes() { return size_t(sysconf(_SC_PAGESIZE)); }

namespace {
// The word in brackets: "always [madvise] never".
std::string chosen_word(const char* file) {
  std::ifstream in(file);
  for (std::string word; in >> word;)
    if (word.front() == '[' && word.back() == ']') return word.substr(1, word.size() - 2);
  return "";
}
}  // namespace

std::string huge_page_mode() { return chosen_word("/sys/kernel/mm/transparent_hugepage/enabled"); }
std::string shared_huge_page_mode() { return chosen_word("/sys/kernel/mm/transparent_hugepage/shmem_enabled"); }

void* map_pages(size_t bytes, bool* huge_advised) {
  DITRAIN_CHECK(bytes > 0, "map_pages(0)");
  if (huge_advised) *huge_advised = false;
  if (bytes > std::numeric_limits<size_t>::max() - 2 * kHugePageBytes) refuse(bytes, std::strerror(ENOMEM));
  const size_t size = round_up(bytes, page_bytes());
  if (bytes < kHugePageBytes) return map_anonymous(size, bytes);

  // The kernel can use huge pages only for aligned parts: map more, then give back what sticks out on both sides.
  char* mapped = map_anonymous(size + kHugePageBytes, bytes);
  char* start = mapped + (round_up(uintptr_t(mapped), kHugePageBytes) - uintptr_t(mapped));
  if (start > mapped) munmap(mapped, size_t(start - mapped));
  char* end = start + size;
  munmap(end, size_t(mapped + size + kHugePageBytes - end));
  const bool advised = madvise(start, size, MADV_HUGEPAGE) == 0;
  if (huge_advised) *huge_advised = advised;
  return start;
}

PageBlock::PageBlock(size_t bytes, PagePolicy policy) : asked_(bytes) {
  if (policy == PagePolicy::kAuto || policy == PagePolicy::kExplicit) {
    if (map_explicit(bytes)) {
      if (const std::string why = why_not_explicit(bytes_); !why.empty()) use_other_pages(why);
      return;
    }
    if (policy == PagePolicy::kExplicit) note_ = no_explicit_pages(bytes, "per rank");
  }
  if (policy == PagePolicy::kPlain) {
    bytes_ = round_up(bytes, page_bytes());
    data_ = reinterpret_cast<std::byte*>(map_anonymous(bytes_, bytes));
    madvise(data_, bytes_, MADV_NOHUGEPAGE);
    return;
  }
  bool advised = false;
  bytes_ = round_up(bytes, page_bytes());
  data_ = static_cast<std::byte*>(map_pages(bytes, &advised));
  if (advised && huge_page_mode() != "never") {
    got_ = PagePolicy::kTransparent;
  } else if (bytes >= kHugePageBytes) {
    if (!note_.empty()) note_ += "; ";
    note_ += "transparent huge pages are off: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root)";
  }
}

bool PageBlock::map_explicit(size_t bytes) {
  const size_t size = round_up(bytes, kHugePageBytes);
  void* p = map(size, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT), -1);
  if (p == MAP_FAILED) return false;
  data_ = static_cast<std::byte*>(p), bytes_ = size, got_ = PagePolicy::kExplicit;
  return true;
}

void PageBlock::use_other_pages(const std::string& why) {
  PageBlock other(asked_, PagePolicy::kTransparent);
  other.note_ = not_allowed(bytes_, why) + (other.note_.empty() ? "" : "; ") + other.note_;
  *this = std::move(other);  // which ends with the pages that this one had
}

bool PageBlock::take_pages() {
  if (got_ != PagePolicy::kExplicit) return false;
  const std::string refusal = take_explicit_pages(data_, bytes_);
  if (!refusal.empty()) use_other_pages(refusal);
  return !refusal.empty();
}

#ifndef MADV_POPULATE_WRITE  // headers before Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif
std::string take_explicit_pages(void* data, size_t bytes) {
  int result = 0;
  do result = madvise(data, bytes, MADV_POPULATE_WRITE);
  while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EINVAL) return "";  // EINVAL: before Linux 5.14
  return std::string("their first touch fails: ") + std::strerror(errno);
}

PageBlock::~PageBlock() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

PageBlock& PageBlock::operator=(PageBlock&& other) noexcept {
  std::swap(data_, other.data_), std::swap(bytes_, other.bytes_), std::swap(asked_, other.asked_);
  std::swap(got_, other.got_), std::swap(note_, other.note_);
  return *this;
}

namespace {

// Sum of a field of /proc/self/smaps in bytes, over the mappings that overlap [begin, end).
size_t sum_of_mappings(uintptr_t begin, uintptr_t end, const std::string& field) {
  std::ifstream in("/proc/self/smaps");
  size_t sum = 0;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    unsigned long from = 0, to = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2)
      inside = from < end && begin < to;
    else if (inside && line.starts_with(field) && std::sscanf(line.c_str() + field.size(), " %lu", &kib) == 1)
      sum += size_t(kib) << 10;
  }
  return sum;
}

}  // namespace

std::string PageBlock::describe() const { return describe_pages(data_, bytes_, got_); }

std::string describe_pages(const void* data, size_t bytes, PagePolicy got) {
  const auto begin = uintptr_t(data);
  const auto sum = [&](const char* field) { return sum_of_mappings(begin, begin + bytes, field); };
  if (got == PagePolicy::kExplicit) {
    const size_t taken = (sum("Private_Hugetlb:") + sum("Shared_Hugetlb:")) / kHugePageBytes;
    return "explicit huge pages of 2 MiB, " + std::to_string(taken) + " taken";
  }
  if (got == PagePolicy::kPlain) return "pages of " + std::to_string(page_bytes() >> 10) + " KiB";
  const size_t rss = sum("Rss:"), huge = sum("AnonHugePages:") + sum("ShmemPmdMapped:");
  return "transparent huge pages, " + std::to_string(rss > 0 ? 100 * huge / rss : 0) + " % of what is in use";
}

SharedFile make_shared_file(size_t bytes, PagePolicy policy) {
  SharedFile file;
  const auto make = [&](unsigned flags) {
    file.fd = memfd_create("ditrain-node", MFD_CLOEXEC | flags);
    if (file.fd < 0) return file.problem = std::string("memfd_create: ") + std::strerror(errno), false;
    if (ftruncate(file.fd, off_t(bytes)) == 0) return true;
    file.problem = "ftruncate to " + std::to_string(bytes) + " bytes: " + std::strerror(errno);
    close(std::exchange(file.fd, -1));
    return false;
  };
  if ((policy == PagePolicy::kAuto || policy == PagePolicy::kExplicit) && bytes % kHugePageBytes == 0) {
    const std::string refusal = why_not_explicit(bytes);
    if (refusal.empty() && make(MFD_HUGETLB | (21u << MAP_HUGE_SHIFT))) {
      // A first mapping reserves the pages, and the file keeps them.
      void* p = map(bytes, MAP_SHARED, file.fd);
      if (p != MAP_FAILED) {
        munmap(p, bytes);
        return file;
      }
      close(std::exchange(file.fd, -1));
    }
    file.problem.clear();
    if (!refusal.empty())
      file.note = not_allowed(bytes, refusal);
    else if (policy == PagePolicy::kExplicit)
      file.note = no_explicit_pages(bytes, "for the gradients of a node's ranks");
  }
  if (!make(0) || policy == PagePolicy::kPlain || bytes % kHugePageBytes != 0) return file;
  if (const std::string mode = shared_huge_page_mode(); mode == "never" || mode == "deny" || mode.empty())
    file.note += std::string(file.note.empty() ? "" : "; ") +
                 "the gradients that ranks of a node share have pages of 4 KiB: echo advise > "
                 "/sys/kernel/mm/transparent_hugepage/shmem_enabled (as root)";
  return file;
}

std::byte* map_shared_file(int fd, size_t bytes, PagePolicy policy, PagePolicy& got) {
  void* p = map(bytes, MAP_SHARED, fd);
  if (p == MAP_FAILED) return nullptr;
  struct statfs system {};
  got = PagePolicy::kPlain;
  if (fstatfs(fd, &system) == 0 && system.f_type == HUGETLBFS_MAGIC) {
    got = PagePolicy::kExplicit;
  } else if (policy == PagePolicy::kPlain) {
    madvise(p, bytes, MADV_NOHUGEPAGE);
  } else if (const std::string mode = shared_huge_page_mode();
             madvise(p, bytes, MADV_HUGEPAGE) == 0 && mode != "never" && mode != "deny" && !mode.empty()) {
    got = PagePolicy::kTransparent;
  }
  return static_cast<std::byte*>(p);
}

void unmap_pages(void* pages, size_t bytes) noexcept {
  if (pages) munmap(pages, round_up(bytes, page_bytes()));
}

}  // namespace ditrain::platform
