// What every op gets: the team that computes and scratch memory of each worker. Ops check shapes, hold the tensors'
// memory while kernels run, and cut the work over the team; whatever the cut, the bits of the result are the same.
#pragma once
#include <memory>
#include <vector>

#include "ditrain/parallel/partition.hpp"
#include "ditrain/parallel/team.hpp"
#include "ditrain/tensor/tensor.hpp"

namespace ditrain::ops {

class Context {
 public:
  explicit Context(parallel::Team& team) : team_(team), scratch_(size_t(team.num_workers())) {}

  parallel::Team& team() const { return team_; }

  /// Scratch of this worker, 64-byte aligned, valid until its next call; contents undefined.
  void* scratch(const parallel::Worker& w, size_t bytes);

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
    size_t bytes = 0;
    void operator()(void* p) const { memory::system_memory().deallocate(p, bytes); }
  };
  parallel::Team& team_;
  std::vector<std::unique_ptr<void, Free>> scratch_;
};

/// Errors: ShapeError "[op] name; got shape, expected shape"
void expect_shape(const char* op, const char* name, const Tensor& t, const Shape& expected);

}  // namespace ditrain::ops
