// parallel.strategy: whatever ranks share, the run learns the same.
#include <catch2/catch.hpp>
#include <csignal>

#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

Args tiny(const std::string& out, int64_t steps, const std::vector<std::string>& settings, const Args& more = {}) {
  return tiny_ditrain(
      out, steps,
      sets({"model.num_heads=4", "dist.bucket_mib=0.02", "optimizer.warmup_steps=0"}) + sets(settings) + more);
}

void require_close(const std::string& got, const std::string& expected, double tolerance) {
  const auto a = read_metrics(got), b = read_metrics(expected);
  for (const char* key : {"loss", "grad_norm"}) {
    CAPTURE(key);
    CHECK(largest_relative_difference(column(a, key), column(b, key)) <= tolerance);
  }
}

double exposed_s(const std::string& out) {
  double seconds = 0;
  for (const auto& line : read_metrics(out)) seconds += line.at("seconds").at("allreduce_exposed").get<double>();
  return seconds;
}

}  // namespace

TEST_CASE("strategies: cftp, dp and dp_tp have one loss curve") {
  const TemporaryFolder scratch;
  const std::string expected = scratch / "cftp";
  REQUIRE_EXIT(run(tiny(expected, 20, {"parallel.clusters=2", "parallel.threads=2"})), 0);
  const auto losses = column(read_metrics(expected), "loss");
  REQUIRE(losses.size() == 20);
  REQUIRE(losses.back() < 0.99 * losses.front());  // it learns: the curves could part
  const auto same = [&](const std::string& name, int ranks, const std::vector<std::string>& settings) {
    CAPTURE(name);
    const std::string out = scratch / name;
    REQUIRE_EXIT(run(mpirun(ranks, tiny(out, 20, settings))), 0);
    require_close(out, expected, 1e-5);
  };
  same("dp", 2, {"parallel.strategy=dp"});
  same("one pair", 2, {"parallel.strategy=dp_tp"});
  CHECK(exposed_s(scratch / "one pair") > 0);
  same("one group of four", 4, {"parallel.strategy=dp_tp"});
  same("two pairs", 4, {"parallel.strategy=dp_tp", "parallel.tensor_ranks=2"});
  same("two pairs without an engine", 4,
       {"parallel.strategy=dp_tp", "parallel.tensor_ranks=2", "dist.engine=false", "train.micro_batch=2"});
}

TEST_CASE("strategies: dp_tp in bf16 learns what cftp does, but for roundings") {
  const TemporaryFolder scratch;
  REQUIRE_EXIT(run(tiny(scratch / "cftp", 20, {"train.precision=bf16"})), 0);
  REQUIRE_EXIT(run(mpirun(2, tiny(scratch / "dp_tp", 20, {"train.precision=bf16", "parallel.strategy=dp_tp"}))), 0);
  require_close(scratch / "dp_tp", scratch / "cftp", 2e-2);
}

TEST_CASE("strategies: a checkpoint of dp_tp is one of cftp, and the other way round") {
  const TemporaryFolder scratch;
  const std::vector<std::string> alone = {}, pair = {"parallel.strategy=dp_tp"};
  const Args resume = {"--resume", "auto"};
  REQUIRE_EXIT(run(tiny(scratch / "whole", 8, alone)), 0);
  REQUIRE_EXIT(run(mpirun(2, tiny(scratch / "pair", 8, pair))), 0);

  REQUIRE_EXIT(run(mpirun(2, tiny(scratch / "to cftp", 4, pair))), 0);
  REQUIRE_EXIT(run(tiny(scratch / "to cftp", 8, alone, resume)), 0);
  REQUIRE(steps_are_complete(read_metrics(scratch / "to cftp"), 8));
  require_close(scratch / "to cftp", scratch / "whole", 1e-5);

  REQUIRE_EXIT(run(tiny(scratch / "to dp_tp", 4, alone)), 0);
  REQUIRE_EXIT(run(mpirun(2, tiny(scratch / "to dp_tp", 8, pair, resume))), 0);
  REQUIRE(steps_are_complete(read_metrics(scratch / "to dp_tp"), 8));
  require_close(scratch / "to dp_tp", scratch / "whole", 1e-5);

  REQUIRE_EXIT(run(mpirun(2, tiny(scratch / "parts", 4, pair))), 0);
  REQUIRE_EXIT(run(mpirun(2, tiny(scratch / "parts", 8, pair, resume))), 0);
  CHECK(column(read_metrics(scratch / "parts"), "loss") == column(read_metrics(scratch / "pair"), "loss"));
  CHECK(different_files(checkpoint_of(scratch / "parts", 8), checkpoint_of(scratch / "pair", 8)).empty());
}

TEST_CASE("strategies: a checkpoint that cannot be written ends all ranks that share the replica") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  Process process(mpirun(2, tiny(out, 1000000, {"parallel.strategy=dp_tp"})));
  REQUIRE(wait_until([&] { return read_metrics(out).size() > 3 || !process.running(); }));
  fs::remove_all(out + "/checkpoints");
  write_file(out + "/checkpoints", "no folder");
  process.send(SIGUSR2);  // which mpirun passes on
  const Result result = process.wait();
  REQUIRE_EXIT(result, 1);
  CHECK_THAT(result.err, Contains("could not be written"));
}

TEST_CASE("strategies: what does not fit together is refused") {
  const TemporaryFolder scratch;
  struct Row {
    int ranks;
    std::vector<std::string> settings;
    const char* text;
  };
  const std::vector<Row> rows = {
      {1, {"parallel.strategy=dp", "parallel.clusters=2"}, "one cluster per rank"},
      {2, {"parallel.strategy=dp_tp", "sample.every_steps=1"}, "pictures and validation"},
      {3, {"parallel.strategy=dp_tp", "parallel.tensor_ranks=2"}, "groups that share a replica"},
      {3, {"parallel.strategy=dp_tp"}, "do not divide over the ranks that share a replica"}};
  std::vector<Args> commands;
  for (const Row& row : rows) {
    const Args command = tiny(scratch / "run", 2, row.settings);
    commands.push_back(on_ranks(row.ranks, command));
  }
  const std::vector<Result> results = run_side_by_side(commands);
  for (size_t i = 0; i < rows.size(); ++i) {
    REQUIRE_EXIT(results[i], 2);
    CHECK_THAT(results[i].err, Contains("ditrain: error: [config]") && Contains(rows[i].text));
  }
}

TEST_CASE("strategies: a dry run tells what a rank shares") {
  const TemporaryFolder scratch;
  const Result result = require_ok(
      tiny(scratch / "run", 2, {"parallel.strategy=dp_tp", "parallel.tensor_ranks=2"}, {"--dry-run", "--ranks", "4"}));
  CHECK_THAT(result.out, Contains("2 rank(s) share a replica and its samples") &&
                             Contains("4 rank(s): 4 sample(s) per rank and step in micro-batches of 4"));
}
