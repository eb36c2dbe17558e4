#include "ditrain/parallel/jobs.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "ditrain/platform/affinity.hpp"

namespace ditrain::parallel {

void run_jobs(int64_t n, const std::vector<int>& pus, const std::function<void(int64_t)>& job) {
  const std::vector<int> mask = pus.empty() ? platform::affinity_mask() : pus;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr first;
  const auto work = [&] {
    for (int64_t i = 0; (i = next.fetch_add(1)) < n;) try {
        job(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        next = n;
      }
  };
  const auto threads = std::min<int64_t>(n, int64_t(mask.size()));
  std::vector<std::thread> crew;
  try {
    for (int64_t t = 0; t < threads; ++t)
      crew.emplace_back([&] {
        platform::set_affinity_mask(mask);
        work();
      });
  } catch (const std::system_error&) {  // as many as the system allows, and at least this one
    if (crew.empty()) work();
  }
  for (std::thread& thread : crew) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace ditrain::parallel
