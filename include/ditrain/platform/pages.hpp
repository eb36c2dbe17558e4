// Whole zero-filled pages from the system, for arenas and pools. On a NUMA machine a page lands near the thread that
// first writes it; numa.hpp places pages on other nodes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "ditrain/base/words.hpp"

namespace ditrain::platform {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

/// Maps `bytes` (> 0, rounded up to whole pages) of private zero-filled memory. Blocks of kHugePageBytes and more are
/// aligned to kHugePageBytes and ask for transparent huge pages; `*huge_advised` tells whether the kernel agreed.
/// Errors:   RunError with the number of bytes if the system refuses
void* map_pages(size_t bytes, bool* huge_advised = nullptr);

/// Mappings by the functions of this file since the start of the process. After warm-up a training step adds none.
int64_t num_page_mappings();

/// The kind of pages that a large block of memory should have.
///   kExplicit     huge pages from the pool that the administrator reserves (vm.nr_hugepages)
///   kTransparent  transparent huge pages, where the kernel grants them on request
///   kPlain        ordinary pages of page_bytes()
///   kAuto         the first of these, in this order, that the system grants
enum class PagePolicy { kAuto, kExplicit, kTransparent, kPlain };
inline constexpr Word<PagePolicy> kPagePolicies[] = {{"auto", PagePolicy::kAuto},
                                                     {"explicit", PagePolicy::kExplicit},
                                                     {"transparent", PagePolicy::kTransparent},
                                                     {"plain", PagePolicy::kPlain}};
constexpr std::span<const Word<PagePolicy>> words_of(PagePolicy) { return kPagePolicies; }

/// A block of whole zero-filled pages; the destructor unmaps it.
class PageBlock {
 public:
  PageBlock() = default;
  /// Errors: as map_pages. If the system refuses the policy the block has other pages, see note()
  PageBlock(size_t bytes, PagePolicy policy);
  ~PageBlock();
  PageBlock(PageBlock&& other) noexcept { *this = std::move(other); }
  PageBlock& operator=(PageBlock&& other) noexcept;

  /// Faults in all pages now if they are explicit huge pages. Otherwise the first touch of a page that the system
  /// refuses (the nodes have fewer, or the job's cgroup allows fewer) would end the process by SIGBUS. Call it after
  /// place_on_nodes. Returns true if the pages were refused: then the block has other pages, which are zero and must be
  /// placed again, and note() says why.
  bool take_pages();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }  ///< whole pages: at least the bytes that were requested
  PagePolicy got() const { return got_; }  ///< the kind of pages; never kAuto
  /// Why the pages are not of the requested kind, with the command that fixes it; "" if they are.
  const std::string& note() const { return note_; }
  /// The pages as the system reports them now: "2 MiB explicit huge pages", "93 % in transparent huge pages", ...
  std::string describe() const;

 private:
  bool map_explicit(size_t bytes);
  void use_other_pages(const std::string& why);
  std::byte* data_ = nullptr;
  size_t bytes_ = 0, asked_ = 0;
  PagePolicy got_ = PagePolicy::kPlain;
  std::string note_;
};

/// Memory that several processes share: a file without a name (memfd) that one of them creates.
struct SharedFile {
  int fd = -1;               ///< the caller closes it; -1: none, see problem
  std::string problem = {};  ///< what the system refused
  std::string note = {};     ///< why the pages are not of the requested kind, with the command that fixes it
};
/// Creates `bytes` of zeros (a multiple of kHugePageBytes if the policy asks for huge pages). All explicit huge pages
/// are reserved now; every process must still call take_explicit_pages() on its part before it touches it.
SharedFile make_shared_file(size_t bytes, PagePolicy policy);
/// Maps the file, in any process; null with errno if the system refuses. Sets `got` to the kind of its pages.
std::byte* map_shared_file(int fd, size_t bytes, PagePolicy policy, PagePolicy& got);

/// Faults in the explicit huge pages of a range now, because the first touch of a page that the system refuses would
/// end the process. Returns the reason of a refusal; "" if it was granted.
std::string take_explicit_pages(void* data, size_t bytes);

/// The pages of a range as the system reports them now; `got` is the kind as which they were mapped.
std::string describe_pages(const void* data, size_t bytes, PagePolicy got);

size_t page_bytes();  ///< size of an ordinary page
/// The system's setting for transparent huge pages: "always", "madvise" (on request, as map_pages does) or "never"; for
/// shared memory "advise", "within_size", "never", "deny", ...; "" if the system does not report it.
std::string huge_page_mode();
std::string shared_huge_page_mode();

/// Unmaps what map_pages(bytes) returned, with the same `bytes`. nullptr is ignored.
void unmap_pages(void* pages, size_t bytes) noexcept;

}  // namespace ditrain::platform
