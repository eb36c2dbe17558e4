// The fast tier of a rank: one range of pages. Every thread cluster has a share of it on its own memory node, the one
// of highest bandwidth near it (HBM, else DRAM).
//
// It also counts the bytes in the fast tier: in the range, and outside of it in memory of other allocators (gradients,
// temporaries, small tensors). Scratch memory of operators, buffers of tree sums and messages are ordinary memory and
// do not count.
//
// Tensors get parts of the range and lose them again (SlotMap). The first tensor on a page decides its node:
//   - A tensor that clusters divide between them (activations by samples, optimiser state and EMA by elements) is split
//   in the order of the clusters, in proportion to their workers; each part is on the node of its cluster.
//   - A tensor that every cluster reads whole (weights of GEMMs) is spread page by page over the nodes of all clusters.
// Pages are bound before first touch, so it does not matter which thread touches them first, and nothing moves between
// nodes later (except explicit huge pages, which are taken and spread at the start and move when they are bound). A
// step uses its tensors in the same order every time, and layers are alike, so a part of the range mostly serves
// tensors of one kind. With parallel.cut: n a cluster has columns of an activation, which pages cannot follow;
// splitting is then no better than spreading. The place of pages changes times, never results.
#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ditrain/memory/allocator.hpp"
#include "ditrain/platform/numa.hpp"
#include "ditrain/platform/pages.hpp"

namespace ditrain::memory {

/// One thread cluster's part of the pool.
struct ClusterShare {
  int node = -1;  ///< memory node of its part
  int workers = 1;
};

/// The cluster whose node should have the page [page, page + page_bytes) of a divided tensor at [offset, offset +
/// bytes): the cluster that has the middle of their intersection.
size_t cluster_of_page(size_t page, size_t page_bytes, size_t offset, size_t bytes,
                       const std::vector<ClusterShare>& clusters);

/// Hands out the blocks of another allocator and counts them. Allocator and count have to outlive the blocks.
class CountedMemory final : public Allocator {
 public:
  CountedMemory(Allocator& home, ByteCount& count) : home_(home), count_(count) {}
  std::string name() const override { return home_.name(); }

 private:
  void* allocate_block(size_t bytes) override {
    void* const block = home_.allocate(bytes);
    count_.add(bytes);
    return block;
  }
  void deallocate_block(void* p, size_t bytes) override {
    home_.deallocate(p, bytes);
    count_.remove(bytes);
  }

  Allocator& home_;
  ByteCount& count_;
};

class FastPool {
 public:
  struct Setup {
    size_t bytes = 0;
    platform::PagePolicy pages = platform::PagePolicy::kAuto;
    std::vector<ClusterShare> clusters = {};  ///< empty: the system places pages
    size_t beside_bytes = 0;                  ///< fast tier outside of the pool, for the advice in notes
    std::map<int, platform::NodeFreeMemory> free_memory = {};  ///< free memory of the process on nodes, if known
  };
  /// Calls of the operating system; tests replace them, to simulate nodes.
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
  /// Call when a tensor gets [offset, offset + bytes): binds pages that no tensor had before. `divided`: clusters
  /// divide the tensor between them.
  void place(size_t offset, size_t bytes, bool divided);
  void release(size_t bytes) { in_use_.remove(bytes); }  ///< a tensor has lost its part

  /// Returns an allocator for data in the fast tier that never moves: it hands out blocks of `home` and counts them.
  /// Pool and home must outlive the blocks. Not thread-safe.
  Allocator& beside(Allocator& home);
  size_t beside_bytes() const;                          ///< bytes in use in such blocks
  size_t peak_bytes() const { return in_use_.peak(); }  ///< peak, in the range and outside of it

  std::string describe() const { return block_.describe(); }  ///< its pages
  /// The nodes of the pages in use, as read back from the system, and how many pages are where they were bound; "" if
  /// the system does not report it.
  std::string describe_places() const;
  std::vector<std::string> notes() const;  ///< fallbacks so far, each with its remedy

 private:
  void check_free_memory();
  void try_nodes();
  void bind(size_t first, size_t last, std::vector<int> nodes);

  const Setup setup_;
  const System system_;
  platform::PageBlock block_;
  mutable std::mutex mutex_;    // guards all below
  std::vector<int> nodes_;      // nodes of the clusters, each once
  std::vector<int16_t> bound_;  // the node of each huge page, or one of the two constants below
  static constexpr int16_t kNew = -1, kSpread = -2;
  std::vector<std::string> notes_;
  ByteCount in_use_;
  std::list<CountedMemory> beside_;
};

}  // namespace ditrain::memory
