// What every op gets: the team that computes and scratch memory of each worker. Ops check shapes, hold the tensors'
// memory while kernels run, and cut the work over the team; whatever the cut, the bits of the result are the same.
#pragma once
#include <memory>
#include <vector>

#include "ditrain/kernels/peers.hpp"
#include "ditrain/parallel/partition.hpp"
#include "ditrain/parallel/team.hpp"
#include "ditrain/tensor/tensor.hpp"

namespace ditrain::ops {

/// Who makes the matrix products, and whether the work around them is done inside them.
struct Products {
  enum class By { kOwn, kReference, kPeer };
  By by = By::kOwn;
  bool fuse = true;                     ///< false, or not kOwn: normalisation and epilogues are passes of their own
  std::shared_ptr<kernels::Peer> peer;  ///< for kPeer
};

class Context {
 public:
  explicit Context(parallel::Team& team);

  parallel::Team& team() const { return team_; }

  /// Scratch of this worker, 64-byte aligned, valid until its next call; contents undefined.
  void* scratch(const parallel::Worker& w, size_t bytes);

  /// Scratch of the team, 64-byte aligned, valid until the next call for the same slot; contents undefined. For the
  /// thread outside the team's jobs.
  void* workspace(int slot, size_t bytes);

  Products products;

  /// f(begin, end, worker) on each worker's part of [0, n), cut at multiples of `grain`.
  template <class F>
  void for_range(int64_t n, int64_t grain, const F& f) {
    team_.run([&](const parallel::Worker& w) {
      const parallel::Range range = parallel::partition(n, w.worker, w.num_workers, grain);
      if (!range.empty()) f(range.begin, range.end, w);
    });
  }

 private:
  struct Free {
    Free() : bytes(0) {}
    explicit Free(size_t size) : bytes(size) {}
    size_t bytes;
    void operator()(void* p) const { memory::system_memory().deallocate(p, bytes); }
  };
  using Block = std::unique_ptr<void, Free>;
  static void* at_least(Block& block, size_t bytes);

  parallel::Team& team_;
  std::vector<Block> scratch_;
  Block workspace_[3];
};

/// Errors: ShapeError "[op] name; got shape, expected shape"
void expect_shape(const char* op, const char* name, const Tensor& t, const Shape& expected);

}  // namespace ditrain::ops
