#include "ditrain/platform/signals.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>

using namespace ditrain::platform;

namespace {

/// What becomes of a child that installs the flags and sends itself these signals: its wait status. After each of them
/// it installs the flags again, as the trainer does when main already has.
int status_of_child(std::initializer_list<int> signals) {
  const pid_t child = fork();
  if (child == 0) {
    // Catch2 installs handlers of its own for SIGTERM; the child must not run them.
    for (const int s : {SIGINT, SIGTERM}) std::signal(s, SIG_DFL);
    install_signal_flags();
    for (const int s : signals) {
      raise(s);
      install_signal_flags();
    }
    _exit(int(take_signal_flags()));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
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
  for (const int s : {SIGUSR1, SIGUSR2, SIGINT, SIGTERM}) std::signal(s, SIG_DFL);
}

TEST_CASE("flags that are removed leave the default actions") {
  for (const int s : {SIGUSR1, SIGUSR2, SIGINT, SIGTERM}) {
    const pid_t child = fork();
    if (child == 0) {
      install_signal_flags();
      remove_signal_flags();
      raise(s);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
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
