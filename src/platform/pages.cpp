#include "ditrain/platform/pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>

#include "ditrain/base/error.hpp"

namespace ditrain::platform {
namespace {

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

[[noreturn]] void refuse(size_t bytes, const char* why) {
  throw RunError({.where = "memory",
                  .what = "cannot map " + std::to_string(bytes) + " bytes: " + why,
                  .hint = "a smaller micro-batch, recomputation, or raising the limit (ulimit -v, cgroup)"});
}

char* map_anonymous(size_t bytes, size_t asked) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) refuse(asked, std::strerror(errno));
  return static_cast<char*>(p);
}

}  // namespace

size_t page_bytes() { return size_t(sysconf(_SC_PAGESIZE)); }

std::string huge_page_mode() {
  std::ifstream in("/sys/kernel/mm/transparent_hugepage/enabled");  // "always [madvise] never"
  for (std::string word; in >> word;)
    if (word.front() == '[' && word.back() == ']') return word.substr(1, word.size() - 2);
  return "";
}

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

void unmap_pages(void* pages, size_t bytes) noexcept {
  if (pages) munmap(pages, round_up(bytes, page_bytes()));
}

}  // namespace ditrain::platform
