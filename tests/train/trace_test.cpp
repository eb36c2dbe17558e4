// The trace of many ranks: names, lanes, one clock, and how much of it each rank may send.
#include "ditrain/train/trace.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>

#include "dist/thread_world.hpp"
#include "ditrain/base/clock.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "support/quiet_communicator.hpp"

using namespace ditrain;

namespace {

/// Rank 0 of `ranks`, the others of which have nothing to say.
class SilentRanks final : public test::QuietCommunicator {
 public:
  using QuietCommunicator::QuietCommunicator;
  std::vector<std::string> gather_strings(const std::string& text, int) override { return {text, ""}; }
};

std::string event(const std::string& name, int ts) {
  return R"({"name":")" + name + R"(","cat":"c","ph":"X","pid":0,"tid":0,"ts":)" + std::to_string(ts) +
         R"(.000,"dur":1000000.000})";
}

std::string text_of(const std::string& path) { return files::read_text_file(path, 1 << 20); }

std::string written(const train::Trace& trace, int ranks) {
  const TemporaryFolder folder;
  SilentRanks comm(ranks);
  trace.write(folder / "trace.json", comm);
  return text_of(folder / "trace.json");
}

/// What `ranks` ranks, two per node, write of what each says; the clock of rank r gains r drift_s meanwhile.
nlohmann::json world_trace(int ranks, const std::function<void(train::Trace&, int)>& say, double drift_s = 0) {
  const TemporaryFolder folder;
  ThreadWorld world{.ranks = ranks, .ranks_per_node = 2};
  run_ranks(world, [&](ThreadCommunicator& comm) {
    double gained_s = 0;  // by this rank's clock
    train::Trace trace(true, comm.rank(), [&gained_s] { return now_s() + gained_s; });
    trace.start(comm);
    say(trace, comm.rank());
    gained_s = comm.rank() * drift_s;
    trace.write(folder / "trace.json", comm);
  });
  return files::parse_json(text_of(folder / "trace.json"));
}

}  // namespace

TEST_CASE("a trace holds the names of its lanes, then the first events that fit into the share of a rank") {
  train::Trace trace(true, 0);
  trace.add("one", "c", 0, 1), trace.add("two", "c", 1, 2), trace.add("three", "c", 2, 3);
  const std::string one = event("one", 0), two = event("two", 1000000), three = event("three", 2000000);
  const std::string all = written(trace, 2);
  CHECK(all.ends_with(",\n" + one + ",\n" + two + ",\n" + three + "\n]}\n"));
  CHECK_THAT(all, Catch::Contains("\"events_left_out\":0"));
  const size_t names = all.find(one) - all.find("{\"name\":\"process_name\"");
  const std::string some = written(trace, int((size_t{1} << 30) / (names + one.size() + two.size() + 20)));
  CHECK(some.ends_with(",\n" + one + ",\n" + two + "\n]}\n"));
  CHECK_THAT(some, Catch::Contains("\"events_left_out\":1"));
  const std::string none = written(trace, 1 << 24);  // 64 bytes, less than an event
  CHECK(none.ends_with("\"traceEvents\":[\n\n]}\n"));
  CHECK(files::parse_json(none).at("otherData").at("events_left_out") == 7);
}

TEST_CASE("a trace of several nodes names ranks, hosts and lanes, and has one clock") {
  const auto trace = world_trace(3, [](train::Trace& t, int rank) {
    const double now = now_s();
    // Sums overlap, which one lane could not show; the fourth finds the first lane free again.
    std::vector<dist::ReductionOutcome> sums;
    for (const double s : {0.0, 1.0, 1.5, 2.0})
      if (rank == 1) sums.push_back({.start_s = now + s, .end_s = now + s + 2});
    t.add_step(7, now - 1, {{train::Phase::kAllreduceExposed, now - 0.5, now}}, sums);
  });
  CHECK(trace.at("otherData").at("ranks") == 3);
  CHECK(trace.at("otherData").at("nodes") == 2);
  CHECK(trace.at("otherData").at("largest_clock_drift_us") < 2e4);
  const double error_us = trace.at("otherData").at("largest_clock_error_us");
  CHECK((error_us > 0 && error_us < 1e6));
  std::map<std::pair<int, int>, std::string> lanes;
  std::map<std::string, int> lane_of;
  std::map<int, std::string> processes;
  for (const auto& e : trace.at("traceEvents")) {
    const int pid = e.at("pid"), tid = e.at("tid");
    if (e.at("name") == "process_name") processes[pid] = e.at("args").at("name");
    if (e.at("name") == "thread_name") lanes[{pid, tid}] = e.at("args").at("name");
    if (e.at("ph") != "X") continue;
    CHECK(std::fabs(e.at("ts").get<double>()) < 60e6);  // since the start, not since the boot of the machine
    if (pid == 1) lane_of[e.at("name")] = tid;
  }
  CHECK(processes.size() == 3);
  CHECK_THAT(processes[2], Catch::StartsWith("rank 2 ("));
  CHECK((lanes[{0, 0}] == "compute" && lanes[{1, 1}] == "communication" && lanes.count({0, 1}) == 0));
  CHECK((lane_of["step 7"] == 0 && lane_of["waiting for sums"] == 0));
  CHECK((lane_of["bucket 0"] == 1 && lane_of["bucket 1"] == 2 && lane_of["bucket 2"] == 3 && lane_of["bucket 3"] == 1));
  CHECK(lanes[{1, 3}] == "communication 3");
}

TEST_CASE("a trace that was not asked for does nothing") {
  train::Trace trace(false, 0);
  SilentRanks comm(2);
  trace.start(comm);
  trace.add("one", "c", 0, 1);
  trace.write("/nowhere/at/all", comm);
  CHECK_FALSE(trace.enabled());
}

TEST_CASE("a trace tells how far the clocks of other nodes have drifted") {
  const auto trace = world_trace(
      4, [](train::Trace&, int) {}, 0.25);
  // Rank 2 leads the other node.
  CHECK(trace.at("otherData").at("largest_clock_drift_us").get<double>() == Approx(0.5e6).margin(2e4));
}

TEST_CASE("copies that are under way at the same time have lanes of their own, and steps keep what lies inside them") {
  train::Trace trace(true, 0);
  trace.add("step", "step", 0.1, 0.9);
  for (const double s : {0.1, 0.2, 0.3}) trace.add("in", "copy", s, s + 0.15, train::Lane::kCopyIn);
  trace.add("node", "forward", 0.1, 0.9);  // ends with its step, to the rounded nanosecond
  const auto events = files::parse_json(written(trace, 1)).at("traceEvents");
  std::map<int, double> end_of;
  std::vector<double> ends;
  int copies = 0;
  for (const auto& e : events) {
    if (e.at("ph") != "X") continue;
    const double begin = e.at("ts"), end = begin + e.at("dur").get<double>();
    if (e.at("cat") != "copy") {
      ends.push_back(end);
      continue;
    }
    CHECK(e.at("tid") != 0);
    CHECK(begin >= end_of[e.at("tid")]);
    end_of[e.at("tid")] = end;
    ++copies;
  }
  CHECK((copies == 3 && end_of.size() == 2));
  CHECK((ends.size() == 2 && ends[0] == ends[1]));
}
