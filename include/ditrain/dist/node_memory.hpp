// Memory that the ranks of a node share: one part per rank, which all of them read and write. It is anonymous (memfd),
// so it needs no space in /dev/shm and disappears with the ranks. If the system refuses to share it (ranks in separate
// containers, no memfd), every rank of the run gets private memory instead; note() says why.
#pragma once
#include <cstddef>
#include <string>

#include "ditrain/dist/communicator.hpp"
#include "ditrain/memory/allocator.hpp"
#include "ditrain/platform/pages.hpp"

namespace ditrain::dist {

/// As an allocator it gives out this rank's part as a single block, so that a tensor can use it.
class NodeMemory final : public memory::Allocator {
 public:
  /// Collective; the same arguments on all ranks. `bytes` (> 0) is the size of each part. Parts are zero and begin at
  /// whole pages. `pages` applies to parts of platform::kHugePageBytes or more.
  /// Errors: RunError if memory is exhausted
  NodeMemory(Communicator& communicator, size_t bytes, bool may_share = true,
             platform::PagePolicy pages = platform::PagePolicy::kTransparent);
  ~NodeMemory() override;

  std::string name() const override { return shared() ? "node window" : "system"; }
  /// Number of parts that this rank can access: one per rank of the node, or its own alone.
  int num_parts() const { return num_parts_; }
  int own_part() const { return own_part_; }
  bool shared() const { return num_parts_ > 1; }
  /// True if some node could not share, so that no node does. The same on all ranks.
  bool refused() const { return refused_; }
  std::byte* part(int i) const { return base_ + size_t(i) * stride_; }
  size_t part_bytes() const { return bytes_; }
  /// Why ranks of a node do not share; "" if they do, or if each is alone on its node.
  const std::string& note() const { return note_; }
  /// Why pages are not of the requested kind, with the command that fixes it; "" if they are.
  const std::string& page_note() const { return page_note_; }
  /// The page sizes and the NUMA nodes of the own part, as the system reports them now.
  std::string describe_pages() const;

 private:
  std::string attach(Communicator& communicator, platform::PagePolicy policy);
  void* allocate_block(size_t bytes) override;
  void deallocate_block(void*, size_t) override { taken_ = false; }

  size_t bytes_, stride_;
  int num_parts_ = 1, own_part_ = 0;
  std::byte* base_ = nullptr;
  platform::PageBlock own_;  // where nothing is shared
  platform::PagePolicy got_ = platform::PagePolicy::kPlain;
  std::string note_, page_note_;
  bool refused_ = false, taken_ = false;
};

}  // namespace ditrain::dist
