// Fork, join and barriers of a Team. Every wait is the same: look at an atomic word for a bounded number of pauses,
// then sleep on it (futex). Words that someone may sleep on are changed by sequentially consistent read-modify-writes,
// so that a thread which changes a word cannot miss one that goes to sleep.
#include "ditrain/parallel/team.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <numeric>
#include <set>
#include <system_error>
#include <thread>

#include "ditrain/base/error.hpp"
#include "ditrain/parallel/partition.hpp"
#include "ditrain/platform/affinity.hpp"

namespace ditrain::parallel {
namespace {

constexpr size_t kCacheLine = 64;
// A pause lasts about 40 to 140 cycles (Zen, Skylake), so 2000 are some 50 us: longer than the gaps between the phases
// of a step, short against a time slice of the scheduler.
constexpr int kSpinPauses = 2000;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

/// Returns once `word` differs from `old`; what the changer wrote before is visible then.
void wait_while_equal(const std::atomic<uint32_t>& word, uint32_t old, int spin_pauses) {
  for (int i = 0; i < spin_pauses; ++i) {
    if (word.load(std::memory_order_acquire) != old) return;
    pause_cpu();
  }
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

/// Thrown out of a wait when another worker failed; never leaves run().
struct BarrierBroken {};

/// The state of the team whose function this thread carries out.
thread_local const void* working_in = nullptr;

/// A barrier for a fixed number of workers: the last one to arrive starts the next generation.
struct alignas(kCacheLine) Barrier {
  std::atomic<uint32_t> missing{0};
  alignas(kCacheLine) std::atomic<uint32_t> generation{0};
  uint32_t size = 0;

  /// Makes it as new. Only while no worker is inside.
  void reset(uint32_t workers) {
    size = workers;
    missing.store(workers, std::memory_order_relaxed);
  }
  void release() {
    generation.fetch_add(1);
    generation.notify_all();
  }
  /// Errors: throws BarrierBroken once `failed` is set and the barrier was released for that reason.
  void arrive_and_wait(int spin_pauses, const std::atomic<bool>& failed) {
    const uint32_t now = generation.load(std::memory_order_acquire);
    // After the load: a worker that sees the generation of a failed run also sees the failure; no other waits in vain.
    if (failed.load(std::memory_order_acquire)) throw BarrierBroken{};
    if (missing.fetch_sub(1, std::memory_order_acq_rel) > 1) {
      wait_while_equal(generation, now, spin_pauses);
    } else {
      missing.store(size, std::memory_order_relaxed);  // published by the generation
      release();
    }
    if (failed.load(std::memory_order_acquire)) throw BarrierBroken{};
  }
};

/// Workers of each cluster.
std::vector<int> sizes_of(const Team::Config& c) {
  if (!c.cluster_sizes.empty()) return c.cluster_sizes;
  std::vector<int> sizes;
  for (int i = 0; i < c.num_clusters; ++i) sizes.push_back(int(partition(c.num_workers, i, c.num_clusters).size()));
  return sizes;
}

std::vector<Worker> make_workers(int num_workers, const std::vector<int>& sizes) {
  std::vector<Worker> workers;
  for (size_t cluster = 0; cluster < sizes.size(); ++cluster)
    for (int i = 0; i < sizes[cluster]; ++i)
      workers.push_back({int(workers.size()), num_workers, int(cluster), int(sizes.size()), i, sizes[cluster]});
  return workers;
}

int spin_pauses_for(const Team::Config& config) {
  if (config.spin_pauses != Team::kAuto) return config.spin_pauses;
  const std::vector<int> pus = config.pus.empty() ? platform::affinity_mask() : config.pus;
  const bool enough = std::set<int>(pus.begin(), pus.end()).size() >= size_t(config.num_workers);
  return enough ? kSpinPauses : Team::kFewPauses;
}

void check_config(const Team::Config& c) {
  DITRAIN_CHECK(c.num_workers >= 1, "num_workers = " + std::to_string(c.num_workers));
  DITRAIN_CHECK(c.num_clusters >= 1 && c.num_clusters <= c.num_workers,
                std::to_string(c.num_clusters) + " clusters of " + std::to_string(c.num_workers) + " workers");
  const auto& sizes = c.cluster_sizes;
  DITRAIN_CHECK(
      sizes.empty() || (sizes.size() == size_t(c.num_clusters) && *std::min_element(sizes.begin(), sizes.end()) >= 1 &&
                        std::accumulate(sizes.begin(), sizes.end(), 0) == c.num_workers),
      "cluster_sizes do not fit num_clusters and num_workers");
  DITRAIN_CHECK(c.pus.empty() || c.pus.size() == size_t(c.num_workers),
                std::to_string(c.pus.size()) + " PUs for " + std::to_string(c.num_workers) + " workers");
  DITRAIN_CHECK(c.spin_pauses >= Team::kAuto, "spin_pauses = " + std::to_string(c.spin_pauses));
}

}  // namespace

struct Team::State {
  explicit State(const Config& c)
      : config(c),
        sizes(sizes_of(c)),
        workers(make_workers(c.num_workers, sizes)),
        spin_pauses(spin_pauses_for(c)),
        errors(size_t(c.num_workers)),
        bind_reasons(size_t(c.num_workers)),
        cluster_barriers(size_t(c.num_clusters)) {
    reset_barriers();
  }

  const Config config;
  const std::vector<int> sizes;  // of clusters
  const std::vector<Worker> workers;
  const int spin_pauses;
  std::vector<std::thread> threads;
  std::vector<int> mask_of_caller;  // as it was before the caller was bound; empty if it was not
  std::vector<std::string> binding_failures;
  std::vector<std::exception_ptr> errors;    // of each worker in this run
  std::vector<std::string> bind_reasons;     // of each worker: why it could not be bound
  const WorkerFunction* function = nullptr;  // of this run; nullptr tells the threads to end
  std::atomic<bool> running{false};
  std::atomic<bool> failed{false};  // some worker threw in this run

  alignas(kCacheLine) std::atomic<uint32_t> fork{0};     // one more for every run
  alignas(kCacheLine) std::atomic<uint32_t> pending{0};  // workers, without the caller, that are not done yet
  Barrier team_barrier;
  std::deque<Barrier> cluster_barriers;

  void reset_barriers() {
    team_barrier.reset(uint32_t(config.num_workers));
    for (size_t i = 0; i < sizes.size(); ++i) cluster_barriers[i].reset(uint32_t(sizes[i]));
  }

  void bind(int worker) {
    if (config.pus.empty()) return;
    const int pu = config.pus[size_t(worker)];
    const platform::BindResult result = platform::bind_this_thread(pu);
    if (!result)
      bind_reasons[size_t(worker)] = "worker " + std::to_string(worker) + " is not bound to hardware thread " +
                                     std::to_string(pu) + ": " + result.reason;
  }

  void start_function(const WorkerFunction* f) {
    function = f;
    pending.store(uint32_t(config.num_workers - 1), std::memory_order_relaxed);  // published by fork
    fork.fetch_add(1);
    fork.notify_all();
  }

  void wait_for_all() {
    for (uint32_t left; (left = pending.load(std::memory_order_acquire)) != 0;)
      wait_while_equal(pending, left, spin_pauses);
  }

  void work(int worker) noexcept {
    working_in = this;
    struct AtEnd {
      ~AtEnd() { working_in = nullptr; }
    } at_end;
    try {
      (*function)(workers[size_t(worker)]);
    } catch (const BarrierBroken&) {
      return;
    } catch (...) {
      errors[size_t(worker)] = std::current_exception();
      release_all_waiting();
    }
  }

  /// The others may wait at a barrier for a worker that will never come.
  void release_all_waiting() {
    failed.store(true);
    team_barrier.release();
    for (Barrier& barrier : cluster_barriers) barrier.release();
  }

  void wait_at(Barrier& barrier) {
    if (barrier.size > 1) barrier.arrive_and_wait(spin_pauses, failed);
  }

  void thread_main(int worker) {
    bind(worker);
    done();  // the constructor waits for the bindings
    for (uint32_t seen = 0;; ++seen) {
      wait_while_equal(fork, seen, spin_pauses);
      if (!function) return;
      work(worker);
      done();
    }
  }

  void done() {
    if (pending.fetch_sub(1) == 1) pending.notify_all();
  }

  void stop_threads() {
    start_function(nullptr);
    for (std::thread& thread : threads) thread.join();
  }

  /// Clears the failure and rethrows the error of the lowest worker that has one.
  void rethrow() {
    failed.store(false);
    reset_barriers();
    std::exception_ptr first;
    for (std::exception_ptr& error : errors) {
      if (!first) first = error;
      error = nullptr;
    }
    std::rethrow_exception(first);
  }
};

Team::Team(const Config& config) {
  check_config(config);
  state_ = std::make_unique<State>(config);
  State& s = *state_;
  s.pending.store(uint32_t(config.num_workers - 1));
  try {
    for (int worker = 1; worker < config.num_workers; ++worker)
      s.threads.emplace_back([&s, worker] { s.thread_main(worker); });
  } catch (const std::system_error& error) {
    s.stop_threads();
    throw RunError({.where = "parallel",
                    .what = std::string("cannot start a worker thread: ") + error.what(),
                    .hint = "fewer threads, or raising ulimit -u"});
  }
  s.wait_for_all();
  // The caller comes last: threads started after it is bound would inherit its single PU.
  if (!config.pus.empty()) s.mask_of_caller = platform::affinity_mask();
  s.bind(0);
  for (std::string& reason : s.bind_reasons)
    if (!reason.empty()) s.binding_failures.push_back(std::move(reason));
}

Team::~Team() {
  state_->stop_threads();
  if (!state_->mask_of_caller.empty()) platform::set_affinity_mask(state_->mask_of_caller);
}

int Team::num_workers() const { return state_->config.num_workers; }
int Team::num_clusters() const { return state_->config.num_clusters; }
const std::vector<int>& Team::cluster_sizes() const { return state_->sizes; }
const std::vector<std::string>& Team::binding_failures() const { return state_->binding_failures; }

void Team::run(WorkerFunction f) {
  State& s = *state_;
  DITRAIN_CHECK(!s.running.exchange(true), "run() inside a run() of the same team");
  struct NotRunning {
    State& state;
    ~NotRunning() { state.running.store(false); }
  } not_running{s};
  if (s.config.num_workers == 1) return f(s.workers[0]);
  s.start_function(&f);
  s.work(0);
  s.wait_for_all();
  if (s.failed.load(std::memory_order_relaxed)) s.rethrow();
}

bool Team::is_running() const { return state_->running.load(); }

void Team::barrier(const Worker&) { state_->wait_at(state_->team_barrier); }
void Team::cluster_barrier(const Worker& w) { state_->wait_at(state_->cluster_barriers[size_t(w.cluster)]); }
void Team::end_if_failed() const {
  if (working_in == state_.get() && state_->failed.load()) throw BarrierBroken{};
}

}  // namespace ditrain::parallel
