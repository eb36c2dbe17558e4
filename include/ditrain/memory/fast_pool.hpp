// The fast tier of a rank: one range of pages, of which every cluster of threads has a share on its own memory node,
// that of highest bandwidth near to it (HBM, else DRAM).
//
// It also counts what lies in the fast tier: in the range, and beside it in memory of other allocators (gradients,
// temporaries, small tensors). Scratch memory of operators, sums of a tree and messages are ordinary memory.
//
// Tensors get parts of the range and lose them again (SlotMap). What a part holds when its pages are first used decides
// where they are: a tensor that clusters divide between them (activations by samples, moments and EMA by elements) is
// cut in the order of the clusters, by their workers, and each cut lies on the node of its cluster; one that every
// cluster reads whole (weights of products) is spread page by page over all of these nodes. Pages are bound before
// anything touches them, so it does not matter which thread does that first, and nothing moves between nodes later
// (explicit huge pages are taken at the start, spread, and move when they are bound). A step uses its tensors in the
// same order every time, and layers are alike, so that a part mostly serves tensors of one kind. With parallel.cut: n a
// cluster has columns of an activation, which no page can follow: there the cuts are only as good as spreading. Where
// pages are alters times, never results.
#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ditrain/memory/byte_count.hpp"
#include "ditrain/platform/numa.hpp"
#include "ditrain/platform/pages.hpp"

namespace ditrain::memory {

/// A cluster of threads.
struct ClusterShare {
  int node = -1;  ///< memory node of its part
  int workers = 1;
};

/// The cluster on whose node the page [page, page + page_bytes) of a tensor at [offset, offset + bytes) belongs: the
/// one that has the middle of what both have in common.
size_t cluster_of_page(size_t page, size_t page_bytes, size_t offset, size_t bytes,
                       const std::vector<ClusterShare>& clusters);

class FastPool {
 public:
  struct Setup {
    size_t bytes = 0;
    platform::PageWish pages = platform::PageWish::kAuto;
    std::vector<ClusterShare> clusters = {};       ///< empty: the system places pages
    size_t beside_bytes = 0;                       ///< of the fast tier that are not in the pool, for what notes advise
    std::map<int, platform::NodeRoom> rooms = {};  ///< that the process has on the nodes, where it is known
  };
  /// What the system does; a test does it itself, for nodes that are not there.
  struct System {
    std::function<platform::NodeResult(void*, size_t, const std::vector<int>&, platform::NodePolicy)> place_on_nodes =
        platform::place_on_nodes;
    std::function<std::vector<int>(const void*, size_t, size_t)> nodes_of_pages = platform::nodes_of_pages;
  };
  explicit FastPool(const Setup& setup);
  FastPool(const Setup& setup, System system);

  std::byte* data() const { return block_.data(); }
  size_t bytes() const { return block_.bytes(); }
  // Threads: any number at once.
  /// A tensor has got [offset, offset + bytes): pages that no tensor had before are bound.
  void place(size_t offset, size_t bytes, bool divided);
  void release(size_t bytes) { in_use_.remove(bytes); }  ///< a tensor has lost its part

  /// Blocks of `home` for what lies in the fast tier and never moves. Pool and home outlive them. Not thread-safe.
  Allocator& beside(Allocator& home);
  size_t beside_bytes() const;                          ///< in use in such blocks
  size_t peak_bytes() const { return in_use_.peak(); }  ///< the most at one time, in the range and beside it

  std::string describe() const { return block_.describe(); }  ///< its pages
  /// Where the pages in use are, as read back from the system, and how many are where they were bound; "" if the system
  /// does not tell.
  std::string describe_places() const;
  std::vector<std::string> notes() const;  ///< fallbacks so far, each with what would mend it

 private:
  void check_room();
  void try_nodes();
  void bind(size_t first, size_t last, std::vector<int> nodes);

  const Setup setup_;
  const System system_;
  platform::PageBlock block_;
  mutable std::mutex mutex_;    // of what follows
  std::vector<int> nodes_;      // of the clusters, each once
  std::vector<int16_t> bound_;  // of each huge page: its node, or one of these
  static constexpr int16_t kNew = -1, kSpread = -2;
  std::vector<std::string> notes_;
  ByteCount in_use_;
  std::list<CountedMemory> beside_;
};

}  // namespace ditrain::memory
