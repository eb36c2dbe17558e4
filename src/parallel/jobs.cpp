#include "ditrain/parallel/jobs.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "ditrain/platform/affinity.hpp"

namespace ditrain::parallel {
namespace {

// Jobs that threads take one by one; the first that fails ends it for all.
class Queue {
 public:
  Queue(int64_t n, const std::function<void(int64_t)>& job) : n_(n), job_(job) {}
  void work() {
    try {
      for (int64_t i; (i = next_.fetch_add(1)) < n_;) job_(i);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!first_) first_ = std::current_exception();
      next_ = n_;
    }
  }
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  const int64_t n_;
  const std::function<void(int64_t)>& job_;
  std::atomic<int64_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr first_;
};

}  // namespace

void run_jobs(Team& team, int64_t n, const std::function<void(int64_t)>& job) {
  Queue queue(n, job);
  team.run([&](const Worker&) { queue.work(); });
  queue.rethrow();
}

void run_jobs(int64_t n, const std::vector<int>& pus, const std::function<void(int64_t)>& job) {
  const std::vector<int> mask = pus.empty() ? platform::affinity_mask() : pus;
  Queue queue(n, job);
  const auto threads = std::min<int64_t>(n, int64_t(mask.size()));
  std::vector<std::thread> crew;
  try {
    for (int64_t t = 0; t < threads; ++t)
      crew.emplace_back([&] {
        platform::set_affinity_mask(mask);
        queue.work();
      });
  } catch (const std::system_error&) {  // as many as the system allows, and at least this one
    if (crew.empty()) queue.work();
  }
  for (std::thread& thread : crew) thread.join();
  queue.rethrow();
}

}  // namespace ditrain::parallel
