// What every op gets: the team that computes and scratch memory of each worker. Ops check shapes, hold the tensors'
// memory while kernels run, and cut the work over the team; whatever the cut, the bits of the result are the same.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "ditrain/base/clock.hpp"
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

/// What a job of the team is, for the account of time.
enum class WorkKind { kElementwise, kProduct, kAttention, kOptimizer };

/// Seconds of worker 0, the thread that calls the ops. What neither covers (hooks, serial code between the jobs) is the
/// rest of the wall time.
struct WorkTimes {
  /// By WorkKind: starting a job and its own share of it, barriers inside the job included. What is fused into a
  /// product or the like counts as that.
  std::array<double, 4> working_s{};
  /// From the end of its share until every worker is done: uneven shares, and workers that were interrupted.
  double waiting_s = 0;
  double operator[](WorkKind kind) const { return working_s[size_t(kind)]; }
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

  /// One job: f(worker) on every worker. All work of the ops goes through here, so that it is accounted for (three
  /// looks at the clock a job, some 0.1 us).
  template <class F>
  void run(WorkKind kind, const F& f) {
    const double start = now_s();
    double done = start;
    team_.run([&](const parallel::Worker& w) {
      f(w);
      if (w.worker == 0) done = now_s();
    });
    times_.working_s[size_t(kind)] += done - start;
    times_.waiting_s += now_s() - done;
  }

  /// f(begin, end, worker) on each worker's part of [0, n), cut at multiples of `grain`.
  template <class F>
  void for_range(WorkKind kind, int64_t n, int64_t grain, const F& f) {
    run(kind, [&](const parallel::Worker& w) {
      const parallel::Range range = parallel::partition(n, w.worker, w.num_workers, grain);
      if (!range.empty()) f(range.begin, range.end, w);
    });
  }
  template <class F>
  void for_range(int64_t n, int64_t grain, const F& f) {
    for_range(WorkKind::kElementwise, n, grain, f);
  }

  /// Work that the calling thread does without the team, another library's product say.
  template <class F>
  void run_alone(WorkKind kind, const F& f) {
    const ScopedTimer timer(&times_.working_s[size_t(kind)]);
    f();
  }

  /// Where the time went since the context was made.
  const WorkTimes& times() const { return times_; }

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
  WorkTimes times_;
  std::vector<Block> scratch_;
  Block workspace_[3];
};

/// Errors: ShapeError "[op] name; got shape, expected shape"
void expect_shape(const char* op, const char* name, const Tensor& t, const Shape& expected);

}  // namespace ditrain::ops
