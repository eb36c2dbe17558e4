#include "ditrain/platform/pages.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <limits>

#include "ditrain/base/error.hpp"
#include "ditrain/platform/limits.hpp"

using namespace ditrain;
using namespace ditrain::platform;

namespace {

/// Size of the address space in use, whether touched or not.
size_t mapped_bytes() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * size_t(sysconf(_SC_PAGESIZE));
}

// Whether explicit huge pages are pretended, of which none can be touched.
bool pretends_huge = false;
int populate_error = 0;

}  // namespace

// In place of those of the C library.
extern "C" void* mmap(void* at, size_t bytes, int access, int flags, int fd, off_t offset) noexcept {
  if (pretends_huge && (flags & MAP_HUGETLB) != 0) flags = MAP_PRIVATE | MAP_ANONYMOUS;
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, access, flags, fd, offset));
}

extern "C" int madvise(void* p, size_t bytes, int advice) noexcept {
  if (pretends_huge && advice == MADV_POPULATE_WRITE) return populate_error == 0 ? 0 : (errno = populate_error, -1);
  return int(syscall(SYS_madvise, p, bytes, advice));
}

TEST_CASE("pages have a size, huge ones a mode") {
  CHECK(page_bytes() == size_t(sysconf(_SC_PAGESIZE)));
  const std::string mode = huge_page_mode();
  CHECK((mode == "always" || mode == "madvise" || mode == "never" || mode.empty()));
  if (std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) CHECK_FALSE(mode.empty());
}

TEST_CASE("pages are zero, writable and given back, small and huge") {
  const size_t bytes = GENERATE(size_t{1}, size_t{4096}, kHugePageBytes - 1, kHugePageBytes, 3 * kHugePageBytes + 5);
  bool huge = true;
  auto* p = static_cast<unsigned char*>(map_pages(bytes, &huge));
  REQUIRE(p != nullptr);
  CHECK(uintptr_t(p) % (bytes >= kHugePageBytes ? kHugePageBytes : 4096) == 0);
  if (bytes < kHugePageBytes) CHECK_FALSE(huge);
  bool zero = true;
  for (size_t i = 0; i < bytes; i += 512) zero &= p[i] == 0;
  CHECK(zero);
  p[0] = 1, p[bytes - 1] = 2;
  unmap_pages(p, bytes);
  CHECK(msync(p, 1, MS_ASYNC) == -1);  // ENOMEM: no longer mapped
}

TEST_CASE("mapping and unmapping leaves nothing behind") {
  const size_t bytes = 5 * kHugePageBytes + 4097;
  const size_t before = resident_bytes(), addresses_before = mapped_bytes();
  for (int i = 0; i < 2000; ++i) {
    auto* p = static_cast<unsigned char*>(map_pages(bytes));
    p[bytes - 1] = 1;
    unmap_pages(p, bytes);
  }
  CHECK(resident_bytes() < before + 4 * kHugePageBytes);
  CHECK(mapped_bytes() < addresses_before + 4 * kHugePageBytes);  // the parts cut off for alignment, too
  unmap_pages(nullptr, 0);
}

TEST_CASE("too many bytes are refused by name") {
  for (const size_t bytes : {size_t{1} << 60, std::numeric_limits<size_t>::max()})
    CHECK_THROWS_WITH(map_pages(bytes), Catch::Contains(std::to_string(bytes) + " bytes"));
  CHECK_THROWS_AS(map_pages(size_t{1} << 60), RunError);
}

TEST_CASE("a block of pages has the pages that were asked for, or says what would provide them") {
  constexpr size_t kBytes = 3 * kHugePageBytes + 1;
  for (const auto& [word, policy] : kPagePolicies) {
    CAPTURE(std::string(word));
    PageBlock block(kBytes, policy);
    CHECK(block.bytes() >= kBytes);
    CHECK(block.got() != PagePolicy::kAuto);
    CHECK(std::all_of(block.data(), block.data() + kBytes, [](std::byte b) { return b == std::byte{0}; }));
    std::fill_n(block.data(), kBytes, std::byte{7});
    CHECK_FALSE(block.describe().empty());
    if (policy == PagePolicy::kPlain) CHECK((block.got() == PagePolicy::kPlain && block.note().empty()));
    if (policy == PagePolicy::kExplicit && block.got() != PagePolicy::kExplicit)
      CHECK(block.note().find("raise vm.nr_hugepages by ") != std::string::npos);
    const std::byte* before = block.data();
    PageBlock moved = std::move(block);
    CHECK(moved.data() == before);
    CHECK(block.data() == nullptr);
  }
}

TEST_CASE("memory that processes share has the pages that were asked for, or says what would provide them") {
  constexpr size_t kBytes = 2 * kHugePageBytes;
  for (const auto& [word, policy] : kPagePolicies) {
    CAPTURE(std::string(word));
    const SharedFile file = make_shared_file(kBytes, policy);
    CHECK(file.problem.empty());
    REQUIRE(file.fd >= 0);
    PagePolicy got = PagePolicy::kAuto, again = PagePolicy::kAuto;
    std::byte* one = map_shared_file(file.fd, kBytes, policy, got);
    std::byte* two = map_shared_file(file.fd, kBytes, policy, again);
    REQUIRE((one != nullptr && two != nullptr && one != two));
    CHECK((got == again && got != PagePolicy::kAuto));
    CHECK(one[kBytes - 1] == std::byte{0});
    one[kBytes - 1] = std::byte{7};
    CHECK(two[kBytes - 1] == std::byte{7});
    if (policy == PagePolicy::kPlain) CHECK((got == PagePolicy::kPlain && file.note.empty()));
    if (policy == PagePolicy::kExplicit && got != PagePolicy::kExplicit)
      CHECK(file.note.find("raise vm.nr_hugepages by ") != std::string::npos);
    if (policy == PagePolicy::kTransparent && got == PagePolicy::kPlain)
      CHECK(file.note.find("shmem_enabled") != std::string::npos);
    if (got == PagePolicy::kExplicit) CHECK(explicit_huge_bytes() >= kHugePageBytes);
    CHECK_FALSE(describe_pages(one, kBytes, got).empty());
    CHECK(munmap(one, kBytes) == 0);
    CHECK(munmap(two, kBytes) == 0);
    close(file.fd);
  }
}

TEST_CASE("explicit huge pages that cannot be touched become other pages") {
  pretends_huge = true;
  const PagePolicy policy = GENERATE(PagePolicy::kAuto, PagePolicy::kExplicit);
  for (const int error : {0, EINVAL}) {  // they can be had; the kernel cannot tell
    PageBlock block(3 * kHugePageBytes, policy);
    populate_error = error;
    CHECK_FALSE(block.take_pages());
    CHECK((block.got() == PagePolicy::kExplicit && block.note().empty()));
  }
  PageBlock block(3 * kHugePageBytes, policy);
  populate_error = EFAULT;
  CHECK(block.take_pages());
  pretends_huge = false;
  CHECK(block.got() != PagePolicy::kExplicit);
  CHECK_THAT(block.note(), Catch::Contains("3 huge pages") && Catch::Contains("hugetlb"));
  CHECK(std::all_of(block.data(), block.data() + block.bytes(), [](std::byte b) { return b == std::byte{0}; }));
  CHECK_FALSE(block.take_pages());
  pretends_huge = true;
  CHECK_THAT(take_explicit_pages(block.data(), block.bytes()), Catch::Contains("first touch fails: Bad address"));
  populate_error = EINVAL;
  CHECK(take_explicit_pages(block.data(), block.bytes()) == "");
  pretends_huge = false;
}
