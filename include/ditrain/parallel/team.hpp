// A team of threads that run the same function at the same time, each on its own part.
//
// Problem:      a training step forks and joins thousands of times; creating threads or allocating for each is
//               too slow, and on a machine with fewer cores than threads spinning is worse than sleeping.
// Difficulties: an exception in one worker while the others wait at a barrier must not hang the team.
// Abstractions: Team (persistent threads, worker 0 is the caller), Worker (its place in the team), barriers of all and
//               of a cluster.
//
//   Team team({.num_workers = 4, .num_clusters = 2});
//   team.run([&](const Worker& w) {
//     const Range rows = partition(num_rows, w.worker, w.num_workers);
//     ...;
//     team.barrier(w);
//   });
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace ditrain::parallel {

/// The place of a worker in the team. A cluster is a run of neighbouring workers, in general those of one NUMA domain;
/// clusters may differ in size.
struct Worker {
  int worker = 0, num_workers = 1;
  int cluster = 0, num_clusters = 1;
  int worker_in_cluster = 0, workers_in_cluster = 1;
};

/// A reference to something callable as f(const Worker&); owns nothing, so the callable must outlive it.
class WorkerFunction {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, WorkerFunction> && std::is_invocable_v<F&, const Worker&>)
      WorkerFunction(F&& f)  // NOLINT: implicit, so that a lambda can be passed to run()
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, const Worker& w) { (*static_cast<std::remove_reference_t<F>*>(object))(w); }) {}
  void operator()(const Worker& w) const { call_(object_, w); }

 private:
  void* object_;
  void (*call_)(void*, const Worker&);
};

/// One persistent team of threads.
/// Threads: the thread that built the team is worker 0; it alone calls run() and destroys the team.
/// Memory:  no allocation after construction.
class Team {
 public:
  struct Config {
    int num_workers = 1;
    int num_clusters = 1;                 ///< at most num_workers
    std::vector<int> cluster_sizes = {};  ///< workers of each cluster, all > 0; empty: dealt out evenly (partition)
    std::vector<int> pus = {};  ///< worker i is bound to pus[i]; empty: unbound, else one entry for every worker
    /// Pauses before a waiting worker sleeps; kAuto: many, or few if cores are fewer than workers.
    int spin_pauses = kAuto;
  };
  static constexpr int kAuto = -1;
  /// With more workers than cores the awaited one may be waiting for this very core.
  static constexpr int kFewPauses = 8;

  /// Starts the threads and, if asked, binds them; the caller is bound as worker 0 until the team is destroyed.
  /// Errors: throws LogicFault for impossible counts, RunError if a thread cannot be started.
  explicit Team(const Config& config);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int num_workers() const;
  int num_clusters() const;
  const std::vector<int>& cluster_sizes() const;  ///< workers of each
  /// One line for each worker that could not be bound; empty if all is as asked.
  const std::vector<std::string>& binding_failures() const;

  /// Calls f once on every worker and returns when all are done. With one worker it is a plain call.
  /// Errors: rethrows what a worker threw, of several the one of the lowest worker; workers that wait at a barrier are
  /// released and unwound then. A run() inside a run() of the same team throws LogicFault.
  void run(WorkerFunction f);

  bool is_running() const;  ///< a run() is under way

  /// Waits until every worker of the team is here; what they wrote before is visible after. Only inside run().
  void barrier(const Worker& w);
  /// The same for the workers of w.cluster.
  void cluster_barrier(const Worker& w);
  /// Call it repeatedly while a worker waits for something other than a barrier: it unwinds the worker if another
  /// worker of this run() has failed. On other threads and outside run() it does nothing.
  void end_if_failed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ditrain::parallel
