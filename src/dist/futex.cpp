#include "futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cmath>
#include <ctime>

namespace ditrain::dist {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

void futex_wait(const std::atomic<uint32_t>& word, uint32_t old, double seconds) {
  if (seconds <= 0) return;
  timespec limit{};
  const bool limited = std::isfinite(seconds);
  if (limited) {
    const double whole = std::floor(seconds);
    limit.tv_sec = time_t(whole);
    limit.tv_nsec = long((seconds - whole) * 1e9);
  }
  syscall(SYS_futex, &word, FUTEX_WAIT, old, limited ? &limit : nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ditrain::dist
