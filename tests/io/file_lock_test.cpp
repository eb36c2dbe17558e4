#include "ditrain/io/file_lock.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "support/files.hpp"

using namespace ditrain;
using io::FileLock;

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

TEST_CASE("a lock that cannot be opened is an error with its path") {
  CHECK_THROWS_WITH(FileLock("/nonexistent/lock"), Catch::Contains("/nonexistent/lock"));
}
