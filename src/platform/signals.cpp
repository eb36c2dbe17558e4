#include "ditrain/platform/signals.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "ditrain/base/error.hpp"

namespace ditrain::platform {
namespace {

constexpr std::array kSignals = {SIGUSR1, SIGUSR2, SIGHUP, SIGPIPE, SIGINT, SIGTERM};

std::atomic<uint64_t> pending{0};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "only lock-free atomics are safe in a signal handler");

struct Before {
  bool known = false;
  std::array<struct sigaction, kSignals.size()> actions{};
};
Before before;  // what the first install_signal_flags() found
std::atomic<bool> interrupt_is_ignored{false};

bool ends_process(int signal_number) { return signal_number == SIGINT || signal_number == SIGTERM; }

extern "C" void flag_signal(int signal_number) {
  const int saved_errno = errno;
  pending.fetch_or(signal_number == SIGUSR1 ? kCheckpointRequested : kStopRequested);
  if (ends_process(signal_number)) {  // std::signal is async-signal-safe; the next one ends the process
    if (!interrupt_is_ignored) std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
  }
  errno = saved_errno;
}

// Rather than SIG_IGN, which programs started from here would inherit.
extern "C" void ignore_signal(int) {}

// By nohup, or for a command that a script runs in the background: neither a closed terminal nor Ctrl-C means it.
bool is_ignored(size_t i) {
  const bool may_be = kSignals[i] == SIGHUP || kSignals[i] == SIGINT || kSignals[i] == SIGPIPE;
  return may_be && before.actions[i].sa_handler == SIG_IGN;
}

void set_action(size_t i, const struct sigaction* wanted, struct sigaction* old) {
  if (sigaction(kSignals[i], wanted, old) != 0)
    throw RunError({.where = "signals", .what = std::string("sigaction: ") + std::strerror(errno)});
}

}  // namespace

void install_signal_flags() {
  struct sigaction action {};
  action.sa_flags = SA_RESTART;  // file and pipe operations go on as if nothing had happened
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size() && !before.known; ++i) {
    set_action(i, nullptr, &before.actions[i]);
    if (kSignals[i] == SIGINT) interrupt_is_ignored = is_ignored(i);
  }
  before.known = true;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    if (is_ignored(i) || (ends_process(kSignals[i]) && (pending & kStopRequested))) continue;
    action.sa_handler = kSignals[i] == SIGPIPE ? ignore_signal : flag_signal;
    set_action(i, &action, nullptr);
  }
}

void remove_signal_flags() {
  for (size_t i = 0; i < kSignals.size() && before.known; ++i) sigaction(kSignals[i], &before.actions[i], nullptr);
  before.known = false;
}

uint64_t take_signal_flags() { return pending.exchange(0); }

}  // namespace ditrain::platform
