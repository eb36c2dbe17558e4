#include "ditrain/platform/signals.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "ditrain/base/error.hpp"

namespace ditrain::platform {
namespace {

constexpr int kSignals[] = {SIGUSR1, SIGUSR2, SIGINT, SIGTERM};

std::atomic<uint64_t> pending{0};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "only lock-free atomics are safe in a signal handler");

extern "C" void flag_signal(int signal_number) {
  const int saved_errno = errno;
  pending.fetch_or(signal_number == SIGUSR1 ? kCheckpointRequested : kStopRequested);
  if (signal_number == SIGINT || signal_number == SIGTERM) {
    std::signal(SIGINT, SIG_DFL);  // async-signal-safe; the next one ends the process
    std::signal(SIGTERM, SIG_DFL);
  }
  errno = saved_errno;
}

}  // namespace

void install_signal_flags() {
  struct sigaction action {};
  action.sa_handler = flag_signal;
  action.sa_flags = SA_RESTART;  // file and pipe operations go on as if nothing had happened
  sigemptyset(&action.sa_mask);
  for (const int signal_number : kSignals) {
    const bool ends_process = signal_number == SIGINT || signal_number == SIGTERM;
    if (ends_process && (pending & kStopRequested)) continue;
    if (sigaction(signal_number, &action, nullptr) != 0)
      throw RunError({.where = "signals", .what = std::string("sigaction: ") + std::strerror(errno)});
  }
}

void remove_signal_flags() {
  for (const int signal_number : kSignals) std::signal(signal_number, SIG_DFL);
}

uint64_t take_signal_flags() { return pending.exchange(0); }

}  // namespace ditrain::platform
