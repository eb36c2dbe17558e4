// Programs that a bench starts: they end with it, what they take is seen, and a limit holds.
#include "../../src/bench/child.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/temporary_folder.hpp"

using namespace ditrain;
using namespace ditrain::bench;

namespace {

template <class F>
bool soon(F f) {
  for (const double end = now_s() + 20; !f(); usleep(5000))
    if (now_s() > end) return false;
  return true;
}

bool is_gone(pid_t pid) { return program_of(pid).empty(); }  // also for a process that was not waited for yet

}  // namespace

TEST_CASE("a child ends with all that it started, and its exit code is known") {
  Child quick({"/bin/sh", "-c", "exit $CODE"}, {.output = "/dev/null", .environment = {"CODE=7"}});
  REQUIRE(soon([&] { return !quick.running(); }));
  CHECK(quick.exit_code() == 7);

  std::vector<pid_t> all;
  {
    Child child({"/bin/sh", "-c", "sleep 1000 & sleep 1000; true"}, {.output = "/dev/null"});
    REQUIRE(soon([&] { return child.processes().size() == 3; }));
    all = child.processes();
    CHECK(all[0] == child.pid());
    CHECK(soon([&] { return pss_bytes(all[0]) > 10000; }));
    CHECK(getpgid(all[0]) == all[0]);
  }
  for (const pid_t pid : all) CHECK(soon([&] { return is_gone(pid); }));
  CHECK(pss_bytes(all[0]) == 0);
}

TEST_CASE("a child that does not end by itself is ended by a signal, its exit code says so") {
  Child child({"/bin/sleep", "1000"}, {.output = "/dev/null"});
  CHECK(child.running());
  child.end();
  CHECK_FALSE(child.running());
  CHECK(child.exit_code() == 128 + SIGKILL);
}

TEST_CASE("a child that is asked to stop does what it has to do before, unless that takes too long") {
  const auto waiting_for_signals = [](const std::string& on_signal) -> std::vector<std::string> {
    return {"/bin/sh", "-c", "trap '" + on_signal + "' USR2; echo ready; while :; do sleep 0.01; done"};
  };
  const TemporaryFolder scratch;
  Child willing(waiting_for_signals("exit 75"), {.output = scratch / "willing"});
  REQUIRE(soon([&] { return willing.said() == "ready\n"; }));
  willing.stop(20);
  CHECK_FALSE(willing.running());
  CHECK(willing.exit_code() == 75);
  Child deaf(waiting_for_signals(":"), {.output = scratch / "deaf"});
  REQUIRE(soon([&] { return deaf.said() == "ready\n"; }));
  deaf.stop(0.2);
  CHECK_FALSE(deaf.running());
  CHECK(deaf.exit_code() == 128 + SIGKILL);
}

TEST_CASE("a program that cannot be started has the exit code of a shell's") {
  Child child({"/no/such/program"}, {.output = "/dev/null"});
  REQUIRE(soon([&] { return !child.running(); }));
  CHECK(child.exit_code() == 127);
}

TEST_CASE("a memory limit ends a process that takes more, by the cgroup or by RLIMIT_DATA") {
  const MemoryCap cap(size_t{64} << 20, 2), none(0, 1);
  CHECK(cap.description().find("memory limit: ") == 0);
  CHECK(none.description().empty());
  Child greedy({"/usr/bin/tail", "/dev/zero"}, {.output = "/dev/null", .cap = &cap});  // looks for the last line
  REQUIRE(soon([&] { return !greedy.running(); }));
  const bool by_cgroup =
      cap.description().find("cgroup") != std::string::npos && cap.description().find("RLIMIT") == std::string::npos;
  CHECK((cap.kills() > 0) == by_cgroup);
  CHECK(greedy.exit_code() == (by_cgroup ? 128 + SIGKILL : 1));
  CHECK(none.kills() == 0);
}

TEST_CASE("programs are looked for in $PATH") {
  CHECK(std::filesystem::exists(find_in_path("sh")));
  CHECK(find_in_path("ditrain-there-is-no-such-program").empty());
}
