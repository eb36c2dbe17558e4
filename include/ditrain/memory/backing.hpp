// Slow tiers hold the bytes of offloaded tensors. Each tier is one preallocated range of bytes, addressed by offset. A
// new kind of tier is one more implementation, and a row of the table (tiers.hpp).
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ditrain/platform/numa.hpp"
#include "ditrain/platform/pages.hpp"

namespace ditrain::memory {

inline constexpr size_t kBlock = 4096;  ///< bytes: offsets, sizes and addresses of copies are multiples of it
constexpr size_t whole_blocks(size_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

class Backing {
 public:
  virtual ~Backing() = default;
  virtual std::string name() const = 0;
  virtual size_t bytes() const = 0;
  /// Copies between the tier and fast memory. All three arguments are multiples of kBlock. Thread-safe.
  /// Errors: RunError naming the tier
  virtual void read(size_t offset, std::byte* to, size_t bytes) = 0;
  virtual void write(size_t offset, const std::byte* from, size_t bytes) = 0;
  /// The address of an offset if cores can use the tier in place; null for a disk.
  virtual std::byte* in_place(size_t) { return nullptr; }
  virtual std::vector<std::string> notes() const { return {}; }  ///< refusals, each with its remedy
  virtual std::string describe() const { return ""; }            ///< its pages and nodes, as the system reports now
};

/// Settings for making a slow tier; each kind uses those that it needs.
struct TierSetup {
  size_t bytes = 0;
  platform::PagePolicy pages = platform::PagePolicy::kAuto;
  std::vector<int> nodes = {};  ///< NUMA nodes for memory, an equal part on each; empty: any
  std::map<int, platform::NodeFreeMemory> free_memory = {};  ///< free memory of the process on nodes, if known
  std::string folder = {};                                   ///< of the disk tier's file
};

/// Makes pinned (mlock) memory on the bulk nodes. Pages that are never written take no RAM.
std::unique_ptr<Backing> make_bulk_memory(const TierSetup& wanted);

/// Makes a preallocated file without a name in the folder; I/O bypasses the page cache (O_DIRECT) if the file system
/// can. The file disappears when the process ends, however it ends.
/// Errors: InputError as check_disk
std::unique_ptr<Backing> make_disk(const TierSetup& wanted);

/// Refuses, before anything is made, a disk tier in wanted.folder for each of `ranks` ranks of a node.
/// Errors: InputError if the folder does not exist, is not writable, has too little free space, or is RAM (tmpfs;
///         DITRAIN_DISK_IN_RAM in the environment allows it, for tests)
void check_disk(const TierSetup& wanted, int ranks = 1);

}  // namespace ditrain::memory
