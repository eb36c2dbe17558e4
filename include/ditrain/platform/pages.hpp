// Whole pages straight from the system, zero-filled, for arenas and pools. Where they land on a NUMA machine is decided
// by the thread that first writes them.
#pragma once
#include <cstddef>
#include <string>

namespace ditrain::platform {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

/// Maps `bytes` (> 0, rounded up to whole pages) of private zero-filled memory. From kHugePageBytes on the address is a
/// multiple of kHugePageBytes and transparent huge pages are asked for; `*huge_advised` tells whether the kernel
/// agreed. Errors: throws RunError naming the bytes if the system refuses.
void* map_pages(size_t bytes, bool* huge_advised = nullptr);

size_t page_bytes();  ///< of an ordinary page
/// Which memory gets transparent huge pages, the system's setting: "always", "madvise" (on request, as map_pages does)
/// or "never"; "" if the system does not tell.
std::string huge_page_mode();

/// Gives back what map_pages(bytes) returned; the same `bytes`. nullptr is ignored.
void unmap_pages(void* pages, size_t bytes) noexcept;

}  // namespace ditrain::platform
