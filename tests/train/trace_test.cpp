// The trace of many ranks: each one sends only its share.
#include "ditrain/train/trace.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <stdexcept>

#include "ditrain/io/files.hpp"

using namespace ditrain;

namespace {

/// Rank 0 of `ranks`, the others of which have nothing to say.
class SilentRanks final : public dist::Communicator {
 public:
  explicit SilentRanks(int ranks) : ranks_(ranks) {}
  int rank() const override { return 0; }
  int world_size() const override { return ranks_; }
  std::vector<std::string> gather_strings(const std::string& text, int) override { return {text, ""}; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  int num_nodes() const override { return ranks_; }
  std::string description() const override { return "silent ranks"; }
  std::unique_ptr<dist::Request> start_allreduce_sum(float*, int64_t) override { throw std::logic_error("unused"); }
  void allreduce_sum(double*, int64_t) override { throw std::logic_error("unused"); }
  void allreduce_max(double*, int64_t) override { throw std::logic_error("unused"); }
  void allreduce_min(double*, int64_t) override { throw std::logic_error("unused"); }
  uint64_t allreduce_or(uint64_t) override { throw std::logic_error("unused"); }
  void broadcast(void*, size_t, int) override { throw std::logic_error("unused"); }
  void barrier() override { throw std::logic_error("unused"); }
  std::vector<double> gather(const double*, int64_t, int) override { throw std::logic_error("unused"); }

 protected:
  void end_all_ranks(int) override { throw std::logic_error("unused"); }

 private:
  int ranks_;
};

std::string event(const std::string& name, int ts) {
  return R"({"name":")" + name + R"(","cat":"c","ph":"X","pid":0,"tid":0,"ts":)" + std::to_string(ts) +
         R"(.0,"dur":1000000.0})";
}

std::string written(const train::Trace& trace, int ranks) {
  const auto path = std::filesystem::temp_directory_path() / ("ditrain_trace_test_" + std::to_string(::getpid()));
  SilentRanks comm(ranks);
  trace.write(path, comm);
  const std::string text = io::read_text_file(path, 1 << 20);
  std::filesystem::remove(path);
  return text;
}

}  // namespace

TEST_CASE("a trace holds the first events that fit into the share of a rank") {
  train::Trace trace(true, 0);
  trace.add("one", "c", 0, 1), trace.add("two", "c", 1, 2), trace.add("three", "c", 2, 3);
  const std::string one = event("one", 0), two = event("two", 1000000), three = event("three", 2000000);
  const std::string begin = "{\"traceEvents\":[\n", end = "\n]}\n";
  CHECK(written(trace, 2) == begin + one + ",\n" + two + ",\n" + three + end);
  CHECK(written(trace, (1 << 30) / 200) == begin + one + ",\n" + two + end);
  CHECK(written(trace, 1 << 24) == begin + end);  // 64 bytes, less than an event
}
