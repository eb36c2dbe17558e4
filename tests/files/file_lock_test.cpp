#include "ditrain/files/file_lock.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <utility>

#include "support/files.hpp"

using namespace ditrain;
using files::FileLock;

TEST_CASE("one process has a lock, says so, and gives it back when it is killed") {
  TemporaryFolder folder;
  const std::string path = folder / "lock";
  std::array<int, 2> ready{};
  REQUIRE(::pipe(ready.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    FileLock lock(path);
    const bool locked = lock.try_lock() == FileLock::Attempt::kLocked;
    lock.describe("the child\n");
    if (::write(ready[1], locked ? "y" : "n", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char locked = 'n';
  REQUIRE(::read(ready[0], &locked, 1) == 1);
  REQUIRE(locked == 'y');
  {
    FileLock lock(path);
    CHECK(lock.try_lock() == FileLock::Attempt::kHeldByOther);
    CHECK(lock.holder() == "the child");
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  FileLock lock(path);
  CHECK(lock.try_lock() == FileLock::Attempt::kLocked);
  for (const int end : ready) ::close(end);
}

TEST_CASE("a shared lock is held until the last process that joined has ended") {
  TemporaryFolder folder;
  const std::string path = folder / "lock";
  std::array<int, 2> ready{};
  REQUIRE(::pipe(ready.data()) == 0);
  auto first = std::make_unique<FileLock>(path);
  REQUIRE(first->try_lock() == FileLock::Attempt::kLocked);
  const auto joins = [&] {  // in a process of its own
    const pid_t child = ::fork();
    if (child == 0) {
      FileLock lock(path);
      const bool joined = lock.share() == FileLock::Attempt::kLocked;
      if (::write(ready[1], joined ? "y" : "n", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char joined = '?';
    REQUIRE(::read(ready[0], &joined, 1) == 1);
    return std::pair(child, joined == 'y');
  };
  const auto ends = [](pid_t child) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  };
  const auto [early, early_joined] = joins();
  CHECK_FALSE(early_joined);
  REQUIRE(first->share() == FileLock::Attempt::kLocked);
  const auto [child, child_joined] = joins();
  CHECK(child_joined);
  // Another process still cannot take it, and sees who keeps it from that.
  const auto next = [&] {
    const pid_t asker = ::fork();
    if (asker == 0) {
      FileLock lock(path);
      const bool locked = lock.try_lock() == FileLock::Attempt::kLocked;
      ::_exit(locked ? 1 : lock.surviving_process() == child ? 2 : 3);
    }
    int status = 0;
    ::waitpid(asker, &status, 0);
    return WEXITSTATUS(status);
  };
  CHECK(next() == 3);
  first.reset();
  CHECK(next() == 2);
  ends(child), ends(early);
  CHECK(next() == 1);
  for (const int end : ready) ::close(end);
}

TEST_CASE("whoever waited for a lock whose holder removed it has the one that others see") {
  TemporaryFolder folder;
  const std::string path = folder / "lock";
  FileLock waited(path);
  std::filesystem::remove(path);  // by the holder, at its end
  CHECK(waited.try_lock() == FileLock::Attempt::kLocked);
  CHECK(std::filesystem::exists(path));
  const pid_t next = ::fork();
  if (next == 0) {
    FileLock lock(path);
    ::_exit(lock.try_lock() == FileLock::Attempt::kHeldByOther ? 0 : 1);
  }
  int status = 0;
  ::waitpid(next, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a lock that cannot be opened is an error with its path") {
  CHECK_THROWS_WITH(FileLock("/nonexistent/lock"), Catch::Contains("/nonexistent/lock"));
}
