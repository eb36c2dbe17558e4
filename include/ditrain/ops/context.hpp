// The context that every op gets: the workers that compute, and their scratch memory. Ops check shapes, pin the
// tensors' memory while kernels run, and split the work over the workers; results are bit-identical for any split.
//
// The thread that drives the ops has a context of the whole team: each job goes to all workers, with a barrier at its
// end. over_samples gives every cluster of the team some samples of a batch: each of its workers calls the same ops
// with a context of its own, takes its share of their jobs, and has barriers with the workers of its cluster only.
// without_barriers gives every worker a context of its own for independent jobs, without barriers between them.
//
//   ctx.for_range(n, 64, [&](int64_t begin, int64_t end, const parallel::Worker&) { scale(x + begin, end - begin); });
#pragma once
#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ditrain/base/clock.hpp"
#include "ditrain/parallel/partition.hpp"
#include "ditrain/parallel/shares.hpp"
#include "ditrain/parallel/team.hpp"
#include "ditrain/tensor/tensor.hpp"

namespace ditrain::ops {

enum class GemmBackend { kOwn, kReference };

/// Which code computes the matrix products (GEMM), and whether the work around them is fused into them.
struct GemmSettings {
  GemmBackend backend = GemmBackend::kOwn;
  bool fuse = true;  ///< false, or not kOwn: normalisation and epilogues are always separate passes
  bool fused() const { return fuse && backend == GemmBackend::kOwn; }
};

/// The kind of a job, for the account of time.
enum class WorkKind { kElementwise, kProduct, kAttention, kOptimizer };

/// Seconds of worker 0, the thread that calls the ops. The rest of the wall time is in neither (hooks, serial code
/// between jobs).
struct WorkTimes {
  /// By WorkKind: starting jobs and computing its own share of them, including barriers inside a job. Work that is
  /// fused into a GEMM or attention counts there.
  std::array<double, 4> working_s{};
  /// From the end of its own share until every worker is done: uneven shares, and workers that were interrupted.
  double waiting_s = 0;
  double operator[](WorkKind kind) const { return working_s[size_t(kind)]; }
};

/// How the forward pass and the data gradients of a batch are split over the clusters of a team. Gradients of weights
/// are always split by rows of the weight.
///   kSamples   whole samples if every cluster gets equally many, so that clusters exchange nothing within a layer;
///              else rows
///   kN         columns of every product and attention heads: the paper's Figure 6
enum class ClusterSplit { kSamples, kN };

/// Numbers of barriers.
struct Meetings {
  int64_t of_team = 0;     ///< barriers of the whole team: ends of jobs, and barriers inside them
  int64_t of_cluster = 0;  ///< the same for the first cluster
};

/// Slots of scratch memory that several workers share, by content. Ops take turns: contents do not outlive the op that
/// asked.
enum class Workspace {
  kOperandA,  ///< operand that is made before its product: normalised, gathered or rounded
  kOperandB,
  kShared,     ///< b as a packing group packs it; sums of blocks of rows
  kOptimizer,  ///< of an update, which calls products
  kNumber
};

class Context {
  struct Free {
    Free() : bytes(0) {}
    explicit Free(size_t size) : bytes(size) {}
    size_t bytes;
    void operator()(void* p) const { memory::system_memory().deallocate(p, bytes); }
  };
  using Block = std::unique_ptr<void, Free>;
  using Workspaces = std::array<Block, size_t(Workspace::kNumber)>;
  // What the context of the team and those of its workers have in common.
  struct Shared {
    parallel::Team& team;
    ClusterSplit cut;
    GemmSettings gemm_settings = {};
    bool dry = false;
    WorkTimes times = {};
    Meetings meetings = {};
    std::vector<Block> scratch = {};           // of each worker
    std::vector<Workspaces> workspaces = {};   // of the team, then of each cluster
    std::mutex growing = {};                   // of a workspace: all workers of a cluster ask for it
    std::deque<parallel::Shares> shares = {};  // of the team, then of each cluster
    std::vector<std::unique_ptr<Context>> of_workers = {}, without_barriers = {};
  };

  std::unique_ptr<Shared> owned_;  // by the context of the team
  Shared* shared_;
  std::optional<parallel::Worker> mine_;  // of a context of one worker: whose it is
  bool without_barriers_ = false;         // its jobs are those of the whole team, else of its cluster

 public:
  explicit Context(parallel::Team& team, ClusterSplit cut = ClusterSplit::kSamples);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  parallel::Team& team() const { return shared_->team; }
  /// Number of workers that take part in a job; the worker numbers that f receives count among these.
  int num_workers() const { return mine_ && !without_barriers_ ? mine_->workers_in_cluster : team().num_workers(); }

  /// Scratch of this worker, 64-byte aligned, valid until its next call; contents undefined.
  void* scratch(const parallel::Worker& w, size_t bytes);

  /// Scratch of all workers of this context, 64-byte aligned, valid until the next call for the same slot; contents
  /// undefined. Not inside a job. Null in a dry context.
  void* workspace(Workspace slot, size_t bytes);

  /// Scratch of all workers of w's cluster, likewise; inside a job, asked for by each of them with the same `bytes`.
  void* cluster_workspace(const parallel::Worker& w, Workspace slot, size_t bytes);

  /// What the workers of w's cluster, or all of a job, share out while they work; inside a job.
  parallel::Shares& shares_of_cluster(const parallel::Worker& w) {
    return shared_->shares[size_t((mine_ ? *mine_ : w).cluster) + 1];
  }
  parallel::Shares& shares_of_job(const parallel::Worker& w) {
    return mine_ && !without_barriers_ ? shares_of_cluster(w) : shared_->shares[0];
  }

  GemmSettings& gemm_settings;  ///< one for the team and its clusters

  /// Runs one job: f(worker) on every worker. All work of the ops goes through here, so that its time is counted (three
  /// readings of the clock per job, some 0.1 us).
  template <class F>
  void run(WorkKind kind, const F& f) {
    if (shared_->dry) return;
    const double start = now_s();
    double done = start;
    if (without_barriers_) {
      f(*mine_);
      done = now_s();
    } else if (mine_) {
      f(in_cluster(*mine_));
      done = now_s();
      meet(*mine_);
    } else {
      run_team([&](const parallel::Worker& w) {
        f(w);
        if (w.worker == 0) done = now_s();
      });
    }
    if (mine_ && mine_->worker != 0) return;
    shared_->times.working_s[size_t(kind)] += done - start;
    shared_->times.waiting_s += now_s() - done;
  }

  /// Waits for the other workers of a job; call it only inside a job.
  void barrier(const parallel::Worker& w);
  /// The same for the workers of w's cluster.
  void cluster_barrier(const parallel::Worker& w) { meet(mine_ ? *mine_ : w); }

  /// Calls f(context, samples) for all samples [0, batch): once with this context or, with ClusterSplit::kSamples, by
  /// every worker for the samples of its cluster. f may call ops on those samples only, and may not use data that other
  /// clusters write.
  template <class F>
  void over_samples(int64_t batch, const F& f) {
    if (!samples_are_cut(batch)) return f(*this, parallel::Range{0, batch});
    run_as_workers([&](const parallel::Worker& w) {
      f(*shared_->of_workers[size_t(w.worker)], parallel::partition(batch, w.cluster, w.num_clusters));
    });
  }

  /// Calls f(context) on every worker, with one barrier at the end. The ops in f must be independent of each other, and
  /// each must be a single job. GEMMs are single jobs if they are fused; if they are not, f is called once with this
  /// context.
  template <class F>
  void without_barriers(const F& f) {
    if (mine_ || !gemm_settings.fused()) return f(*this);
    run_as_workers([&](const parallel::Worker& w) { f(*shared_->without_barriers[size_t(w.worker)]); });
  }
  /// Whether this context belongs to the first of the workers that run f at the same time.
  bool leads() const { return !mine_ || mine_->worker == 0; }
  /// Whether it belongs to the first worker of its cluster.
  bool leads_cluster() const { return !mine_ || mine_->worker_in_cluster == 0; }
  /// In f of over_samples: the cluster that has these samples; 0 if f has all samples.
  int cluster() const { return mine_ ? mine_->cluster : 0; }
  /// Waits for the other workers of the cluster, in f of over_samples.
  void meet_cluster() {
    if (mine_) meet(*mine_);
  }
  /// How many clusters over_samples calls f on at the same time.
  int clusters_over_samples(int64_t batch) const { return samples_are_cut(batch) ? team().num_clusters() : 1; }
  /// Whether jobs follow each other without a barrier.
  bool runs_without_barriers() const { return without_barriers_; }

  void set_cut(ClusterSplit cut) { shared_->cut = cut; }
  /// Dry: ops only check and pin their tensors; they read and write no memory.
  void set_dry(bool dry) { shared_->dry = dry; }
  ClusterSplit cut() const { return shared_->cut; }
  /// Whether columns and heads go to clusters before they go to workers.
  bool cuts_columns() const { return (!mine_ || without_barriers_) && shared_->cut == ClusterSplit::kN; }

  /// Calls f(begin, end, worker) on each worker's part of [0, n), split at multiples of `grain`.
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

  /// Runs f on the calling thread alone, and counts its time.
  template <class F>
  void run_alone(WorkKind kind, const F& f) {
    if (shared_->dry) return;
    const ScopedTimer timer(&shared_->times.working_s[size_t(kind)]);
    f();
  }

  /// Where the time went since the context was made.
  const WorkTimes& times() const { return shared_->times; }
  const Meetings& meetings() const { return shared_->meetings; }

 private:
  static void* at_least(Block& block, size_t bytes);
  Context(Shared& shared, const parallel::Worker& mine, bool without_barriers);
  template <class F>
  void run_as_workers(const F& f) {
    double done = 0;
    run_team([&](const parallel::Worker& w) {
      f(w);
      if (w.worker == 0) done = now_s();
    });
    shared_->times.waiting_s += now_s() - done;
  }
  void run_team(parallel::WorkerFunction f);
  static parallel::Worker in_cluster(const parallel::Worker& w);
  void meet(const parallel::Worker& w);
  bool samples_are_cut(int64_t batch) const;
};

/// Errors: ShapeError "[op] name; got shape, expected shape"
void expect_shape(const char* op, const char* name, const Tensor& t, const Shape& expected);

}  // namespace ditrain::ops
