// Wall-clock time in seconds from a monotonic clock.
#pragma once
#include <chrono>
#include <ctime>

namespace ditrain {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// CPU seconds of all threads of this process so far, user and system.
inline double cpu_s() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

/// Adds its own lifetime to `*sum_s`.
class ScopedTimer {
 public:
  explicit ScopedTimer(double* sum_s) : sum_s_(sum_s), start_s_(now_s()) {}
  ~ScopedTimer() { *sum_s_ += now_s() - start_s_; }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  double* sum_s_;
  double start_s_;
};

}  // namespace ditrain
