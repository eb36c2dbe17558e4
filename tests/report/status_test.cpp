#include "ditrain/report/status.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "ditrain/files/file_lock.hpp"
#include "run_folder.hpp"

using namespace ditrain;
using namespace ditrain::report;

TEST_CASE("a status is read as it was written") {
  const TemporaryFolder scratch;
  const Status written{RunState::kStopped, 7, 10, 2.0, 1000, "a \"signal\"\n", "1.2 (abc)"};
  write(scratch / "status.json", to_json(written));
  const auto status = read_status(scratch.path(), 5000);
  REQUIRE(status);
  CHECK(status->state == RunState::kStopped);
  CHECK(status->step == 7);
  CHECK(status->steps == 10);
  CHECK(status->eta_s == 2.0);
  CHECK(status->heartbeat_s == 1000);
  CHECK(status->reason == written.reason);
  CHECK(status->build == "1.2 (abc)");
}

TEST_CASE("a run that another build goes on with names both") {
  const TemporaryFolder scratch;
  CHECK(builds_with(scratch.path(), "1 (b)") == "1 (b)");  // a branch
  write(scratch / "metrics.jsonl", "{}\n");
  CHECK(builds_with(scratch.path(), "1 (b)") == "unknown, 1 (b)");
  write(scratch / "status.json", "{\"build\": ");
  CHECK(builds_with(scratch.path(), "1 (b)") == "unknown, 1 (b)");
  const auto after = [&](const std::string& before) {
    std::filesystem::remove(scratch / "status.json");
    write(scratch / "status.json", to_json({.build = before}));
    return builds_with(scratch.path(), "1 (b)");
  };
  CHECK(after("1 (b)") == "1 (b)");
  CHECK(after("1 (a)") == "1 (a), 1 (b)");
  CHECK(after("1 (a), 1 (b)") == "1 (a), 1 (b)");
  CHECK(after("1 (b), 1 (a)") == "1 (b), 1 (a)");
  CHECK(after("") == "unknown, 1 (b)");
}

TEST_CASE("a killed run has stopped without a word, a slow one runs") {
  const TemporaryFolder scratch;
  const double now = 10000;
  write(scratch / "status.json", to_json({RunState::kRunning, 7, 10, 2.0, now, ""}));
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t run = ::fork();
  if (run == 0) {  // holds the folder until it is killed
    files::FileLock lock(scratch / ".lock");
    const char locked = lock.lock_for_job(0) == files::FileLock::Attempt::kLocked ? 'y' : 'n';
    (void)!::write(ready[1], &locked, 1);
    for (;;) ::pause();
  }
  char locked = 0;
  REQUIRE(::read(ready[0], &locked, 1) == 1);
  CHECK(locked == 'y');
  CHECK(read_status(scratch.path(), now + 5000)->state == RunState::kRunning);
  ::kill(run, SIGKILL);
  ::waitpid(run, nullptr, 0);
  CHECK(read_status(scratch.path(), now + 5)->state == RunState::kRunning);  // its heartbeat is fresh
  CHECK(read_status(scratch.path(), now + 5000)->state == RunState::kVanished);
  ::close(ready[0]), ::close(ready[1]);
}

TEST_CASE("a heartbeat that is no time is written as the nearest one there is") {
  for (const auto& [heartbeat, utc] : {std::pair{1e300, "9999-12-31T23:59:59Z"},
                                       {1e17, "9999-12-31T23:59:59Z"},
                                       {-1e300, "1970-01-01T00:00:00Z"},
                                       {86400.0, "1970-01-02T00:00:00Z"}}) {
    const TemporaryFolder scratch;
    write(scratch / "status.json", fmt::format(R"({{"state":"running","heartbeat":{}}})", heartbeat));
    const auto status = read_status(scratch.path(), 0);
    REQUIRE(status);
    CHECK(to_json(*status).find(fmt::format("\"heartbeat_utc\": \"{}\"", utc)) != std::string::npos);
  }
}

TEST_CASE("damaged and strange status files count as none") {
  for (const char* text :
       {"", "{", "[]", "{}", R"({"state":"dancing"})", R"({"state":7})", R"({"state":"failed","step":"x"})"}) {
    const TemporaryFolder scratch;
    write(scratch / "status.json", text);
    INFO(text);
    CHECK_FALSE(read_status(scratch.path(), 0));
  }
}

TEST_CASE("numbers for Prometheus are gauges with the name of the run") {
  const std::string text = to_prometheus({RunState::kRunning, 7, 10, 2.0, 1000, ""},
                                         {.loss = 0.5, .lr = NAN, .rss_bytes = 1 << 20}, "a\"b\\c\nd");
  CHECK(text.find("# TYPE ditrain_loss gauge\nditrain_loss{run=\"a\\\"b\\\\c\\nd\"} 0.5\n") != std::string::npos);
  CHECK(text.find("ditrain_learning_rate{") == std::string::npos);
  CHECK(text.find(",state=\"running\"} 1\n") != std::string::npos);
  CHECK(text.find(",state=\"failed\"} 0\n") != std::string::npos);
  CHECK(text.back() == '\n');
  const std::string odd = to_prometheus({RunState::kRunning, 7, 10, 2.0, 1000, ""}, {}, "r\xe9");
  CHECK(odd.find("run=\"r\xef\xbf\xbd\"") != std::string::npos);  // U+FFFD
}
