// Whole pages straight from the system, zero-filled, for arenas and pools. Where they land on a NUMA machine is decided
// by the thread that first writes them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "ditrain/base/words.hpp"

namespace ditrain::platform {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

/// Maps `bytes` (> 0, rounded up to whole pages) of private zero-filled memory. From kHugePageBytes on the address is a
/// multiple of kHugePageBytes and transparent huge pages are asked for; `*huge_advised` tells whether the kernel
/// agreed. Errors: throws RunError naming the bytes if the system refuses.
void* map_pages(size_t bytes, bool* huge_advised = nullptr);

/// What this process has asked of the system so far: a step that is warm adds nothing to the first.
struct PageEvents {
  int64_t mappings = 0;  ///< made by the functions of this file
  int64_t minor_faults = 0, major_faults = 0;
};
PageEvents page_events();

/// What kind of pages a large block of memory is to have.
///   kExplicit     from the pool of huge pages that the administrator reserves (vm.nr_hugepages)
///   kTransparent  huge where the kernel grants them on request
///   kPlain        of page_bytes()
///   kAuto         the first of these in this order that can be had
enum class PagePolicy { kAuto, kExplicit, kTransparent, kPlain };
inline constexpr Word<PagePolicy> kPagePolicies[] = {{"auto", PagePolicy::kAuto},
                                                     {"explicit", PagePolicy::kExplicit},
                                                     {"transparent", PagePolicy::kTransparent},
                                                     {"plain", PagePolicy::kPlain}};
constexpr std::span<const Word<PagePolicy>> words_of(PagePolicy) { return kPagePolicies; }

/// A block of whole pages, zero-filled, given back when the object ends.
class PageBlock {
 public:
  PageBlock() = default;
  /// Errors: as map_pages; not for a policy that the system refuses, see note()
  PageBlock(size_t bytes, PagePolicy policy);
  ~PageBlock();
  PageBlock(PageBlock&& other) noexcept { *this = std::move(other); }
  PageBlock& operator=(PageBlock&& other) noexcept;

  /// Takes all pages now if they are explicit huge ones: the first touch of one that the system then refuses (there are
  /// fewer on the nodes, or the job's cgroup allows fewer) would end the process by SIGBUS. Call it after
  /// place_on_nodes. Returns true if they were refused: then the block has other pages, which are zero and have to be
  /// placed, and note() says why.
  bool take_pages();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }  ///< whole pages: at least what was asked for
  PagePolicy got() const { return got_; }  ///< never kAuto
  /// Why it is not what was asked for, with the line that would mend it; "" if it is.
  const std::string& note() const { return note_; }
  /// What the system says of its pages now: "2 MiB explicit huge pages", "93 % in transparent huge pages", ...
  std::string describe() const;

 private:
  bool map_explicit(size_t bytes);
  void use_other_pages(const std::string& why);
  std::byte* data_ = nullptr;
  size_t bytes_ = 0, asked_ = 0;
  PagePolicy got_ = PagePolicy::kPlain;
  std::string note_;
};

/// Memory that processes share, as one of them makes it: a file without a name (memfd).
struct SharedFile {
  int fd = -1;               ///< the caller closes it; -1: none, see problem
  std::string problem = {};  ///< what the system refused
  std::string note = {};     ///< why its pages are not those asked for, with the line that would mend it
};
/// `bytes` (a multiple of kHugePageBytes where huge pages are asked for) of zeros. All explicit huge pages are reserved
/// now; every process still takes its part (take_explicit_pages) before it touches it.
SharedFile make_shared_file(size_t bytes, PagePolicy policy);
/// Maps it, in any process; null with errno if the system refuses. `got`: what its pages are.
std::byte* map_shared_file(int fd, size_t bytes, PagePolicy policy, PagePolicy& got);

/// Takes the explicit huge pages of a range now: the first touch of one that the system refuses would end the process.
/// Returns why it refuses; "" if it does not.
std::string take_explicit_pages(void* data, size_t bytes);

/// What the system says of the pages of a range now; `got`: what they were mapped as.
std::string describe_pages(const void* data, size_t bytes, PagePolicy got);

size_t page_bytes();  ///< of an ordinary page
/// Which memory gets transparent huge pages, the system's setting: "always", "madvise" (on request, as map_pages does)
/// or "never"; "" if the system does not tell. The same of shared memory: "advise", "within_size", "never", "deny", ...
std::string huge_page_mode();
std::string shared_huge_page_mode();

/// Gives back what map_pages(bytes) returned; the same `bytes`. nullptr is ignored.
void unmap_pages(void* pages, size_t bytes) noexcept;

}  // namespace ditrain::platform
