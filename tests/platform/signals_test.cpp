#include "ditrain/platform/signals.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>

using namespace ditrain::platform;

namespace {

constexpr std::array kSignals = {SIGUSR1, SIGUSR2, SIGHUP, SIGPIPE, SIGINT, SIGTERM};

/// What becomes of a child without handlers that ends with the value of `body`: its wait status.
template <class Body>
int status_of(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int s : kSignals) std::signal(s, SIG_DFL);  // Catch2 has handlers of its own
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

/// The wait status of a child that installs the flags and sends itself these signals. After each of them it installs
/// the flags again, as the trainer does when main already has.
int status_of_child(std::initializer_list<int> signals) {
  return status_of([&] {
    install_signal_flags();
    for (const int s : signals) {
      raise(s);
      install_signal_flags();
    }
    return int(take_signal_flags());
  });
}

bool is_ignored(int signal_number) {
  struct sigaction action {};
  return sigaction(signal_number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

TEST_CASE("signals become flags and are taken once") {
  install_signal_flags();
  CHECK(take_signal_flags() == 0);
  raise(SIGUSR1);
  raise(SIGUSR1);
  CHECK(take_signal_flags() == kCheckpointRequested);
  CHECK(take_signal_flags() == 0);
  raise(SIGUSR2);
  raise(SIGUSR1);
  CHECK(take_signal_flags() == (kCheckpointRequested | kStopRequested));
  remove_signal_flags();
}

TEST_CASE("flags that are removed leave the default actions") {
  for (const int s : kSignals) {
    const int status = status_of([&] {
      install_signal_flags();
      install_signal_flags();  // which must not take its own handlers for what was there
      remove_signal_flags();
      raise(s);
      return 0;
    });
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == s));
  }
}

TEST_CASE("the first SIGINT or SIGTERM asks for a stop, the second ends the process") {
  for (const int first : {SIGINT, SIGTERM}) {
    const int once = status_of_child({first});
    REQUIRE(WIFEXITED(once));
    CHECK(WEXITSTATUS(once) == int(kStopRequested));
    for (const int second : {SIGINT, SIGTERM}) {
      const int twice = status_of_child({first, second});
      REQUIRE(WIFSIGNALED(twice));
      CHECK(WTERMSIG(twice) == second);
    }
  }
}

TEST_CASE("SIGUSR2 may come any number of times") {
  const int status = status_of_child({SIGUSR2, SIGUSR2, SIGUSR2, SIGUSR1});
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == int(kStopRequested | kCheckpointRequested));
}

TEST_CASE("a terminal that is closed asks for a stop, as often as its shell says so") {
  const int status = status_of_child({SIGHUP, SIGHUP});
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == int(kStopRequested));
}

TEST_CASE("SIGINT and SIGHUP that the parent had ignored stay ignored") {
  const int status = status_of([] {
    for (const int s : {SIGINT, SIGHUP}) std::signal(s, SIG_IGN);
    install_signal_flags();
    for (const int s : {SIGINT, SIGHUP}) raise(s);
    if (take_signal_flags() != 0) return 10;
    raise(SIGTERM);
    raise(SIGINT);  // SIGTERM has not brought it back
    install_signal_flags();
    if (!is_ignored(SIGINT) || !is_ignored(SIGHUP)) return 11;
    remove_signal_flags();
    if (!is_ignored(SIGINT) || !is_ignored(SIGHUP)) return 12;
    return int(take_signal_flags());
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == int(kStopRequested));
}

TEST_CASE("writing into a pipe without a reader fails, and ends the process once the flags are removed") {
  const auto write_nowhere = [] {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) return false;
    close(ends[0]);
    return write(ends[1], "x", 1) < 0 && errno == EPIPE;
  };
  const int kept = status_of([&] {
    install_signal_flags();
    // Programs that it starts would inherit an ignored signal.
    return write_nowhere() && !is_ignored(SIGPIPE) && take_signal_flags() == 0 ? 0 : 1;
  });
  CHECK((WIFEXITED(kept) && WEXITSTATUS(kept) == 0));
  const int removed = status_of([&] {
    install_signal_flags();
    remove_signal_flags();
    return int(write_nowhere());
  });
  CHECK((WIFSIGNALED(removed) && WTERMSIG(removed) == SIGPIPE));
}
