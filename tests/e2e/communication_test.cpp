// Ranks that sum gradients in every way the configs offer, and a rank that stands still.
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <memory>

#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

// Several buckets per step, all of them sums.
Args two_ranks(const std::string& out, const std::vector<std::string>& settings, const Args& more = {}) {
  return mpirun(2, tiny_ditrain(out, 4, sets({"dist.bucket_mib=0.02", "dist.adaln=reduce"}) + sets(settings) + more));
}

}  // namespace

TEST_CASE("communication: two ranks learn the same, however gradients are summed") {
  const TemporaryFolder scratch;
  REQUIRE_EXIT(run(two_ranks(scratch / "passing", {"dist.engine=false"})), 0);
  const auto expected = read_metrics(scratch / "passing");
  const auto same_as = [&](const std::string& name, const std::vector<std::string>& settings, double tolerance) {
    INFO(name);
    REQUIRE_EXIT(run(two_ranks(scratch / name, settings)), 0);
    const auto got = read_metrics(scratch / name);
    for (const char* key : {"loss", "grad_norm"})
      CHECK(largest_relative_difference(column(got, key), column(expected, key)) <= tolerance);
    for (const auto& line : got) {
      const double hidden = line.at("seconds").at("allreduce_hidden"),
                   exposed = line.at("seconds").at("allreduce_exposed");
      CHECK((hidden >= 0 && exposed >= 0 && hidden + exposed > 0));
    }
  };
  // Two terms have one sum: only the norm is added in another order, in f64.
  same_as("hierarchical", {"dist.allreduce=hierarchical"}, 1e-12);
  same_as("flat", {"dist.allreduce=flat"}, 1e-12);
  same_as("at_the_end", {"dist.overlap=false"}, 1e-12);
  same_as("factors", {"dist.adaln=factors"}, 1e-5);
  CHECK(read_metrics(scratch / "factors").back().at("grad_norm") != expected.back().at("grad_norm"));
}

TEST_CASE("communication: an MPI library that only one thread may call gives the same bits") {
  const TemporaryFolder scratch;
  const Args only_one = {"-x", preload(DITRAIN_MPI_OF_FEWER_THREADS), "-x", "DITRAIN_TEST_MPI_THREADS=funneled"};
  for (const std::string strategy : {"cftp", "dp_tp"}) {
    CAPTURE(strategy);
    const auto job = [&](const std::string& out) {
      return tiny_ditrain(out, 4, sets({"dist.bucket_mib=0.02", "parallel.strategy=" + strategy}) + Args{"--trace"});
    };
    const std::string all = scratch / strategy, one = scratch / strategy + "_one_thread";
    REQUIRE_EXIT(run(mpirun(2, job(all))), 0);
    const Result result = require_ok(mpirun(2, job(one), only_one));
    CHECK_THAT(result.out, Contains("thread level funneled"));
    CHECK(different_files(checkpoint_of(all, 4), checkpoint_of(one, 4)).empty());
    CHECK(fs::exists(one + "/trace.json"));
  }
}

TEST_CASE("communication: a simulated link takes its time, the log tells how much was hidden") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Result result = require_ok(two_ranks(
      out, {"dist.simulate_link={gbit_s: 1000, latency_us: 50000, hosts: 2}", "dist.bucket_mib=64"}, {"--trace"}));
  CHECK_THAT(result.out, Contains("held back as by a link of 1000 Gbit/s") && Contains("% hidden)"));
  REQUIRE(steps_are_complete(read_metrics(out), 4));
  for (const auto& line : read_metrics(out)) {
    const auto& seconds = line.at("seconds");
    CHECK(seconds.at("allreduce_hidden").get<double>() + seconds.at("allreduce_exposed").get<double>() >= 0.0999);
  }
  int buckets = 0;
  const auto events = read_json(out + "/trace.json").at("traceEvents");
  for (const auto& event : events) {
    if (event.value("cat", "") != "communication") continue;
    ++buckets;
    CHECK(event.at("tid") == 1);
    CHECK(event.at("dur").get<double>() >= 0.0999e6);
  }
  CHECK(buckets == 2 * 4);  // ranks x steps
}

// Whatever the rank was doing when it was stopped: a step, a checkpoint, what lies between two.
TEST_CASE("communication: a rank that stands still is named and ends the run", "[long]") {
  const TemporaryFolder scratch;
  std::vector<std::unique_ptr<Process>> jobs;
  const std::vector<std::vector<std::string>> checkpoints = {{"checkpoint.every_steps=0"},
                                                             {"checkpoint.every_steps=1"},
                                                             {"checkpoint.every_steps=1", "checkpoint.async=false"},
                                                             {"checkpoint.every_steps=1", "checkpoint.async=false"}};
  for (size_t round = 0; round < checkpoints.size(); ++round) {  // each waits while the next one starts
    CAPTURE(round);
    const std::string out = scratch / std::to_string(round);
    jobs.push_back(std::make_unique<Process>(
        mpirun(2, tiny_ditrain(out, kForEver, sets({"dist.timeout_s=2"}) + sets(checkpoints[round])))));
    REQUIRE(wait_until([&] { return read_metrics(out).size() > 3 + round || !jobs.back()->running(); }));
    const pid_t rank_1 = process_of_rank(1, out);
    REQUIRE(rank_1 > 0);
    REQUIRE(kill(rank_1, SIGSTOP) == 0);
  }
  const double start = ditrain::now_s();
  for (const auto& job : jobs) {
    const Result result = job->wait();
    INFO(result.text());
    CHECK(result.exit_code == 1);
    CHECK_THAT(result.err, Contains("[watchdog]") && Contains("did not finish in 2") &&
                               Contains("no answer at all: rank 1 (") && Contains("dist.timeout_s"));
  }
  CHECK(ditrain::now_s() - start < 30);
}

// In the first step, whose end is the first time that ranks tell each other of their pages.
TEST_CASE("communication: rank 0 waits for no rank after an error of its own, and the step has its line") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args settings =
      sets({"dist.timeout_s=2", "dist.shard_optimizer=true", "eval.every_steps=1", "eval.num_images=8"});
  const RunOptions stopped{.timeout_s = 60, .environment = trap("open", ".tmp_step_", "stop", 1)};
  const Result result = run(mpirun(2, tiny_ditrain(out, 1, settings)), stopped);
  REQUIRE_EXIT(result, 1);
  CHECK_THAT(result.err, Contains("[watchdog]") && Contains("no answer at all: rank 1 ("));
  CHECK(steps_are_complete(read_metrics(out), 1));
  CHECK(read_json(out + "/status.json").at("state") == "failed");
}

// In each case another rank waits for it: in an update of the weights, for its part of the checkpoint and until its
// files are open, for the commit and for the link to the best checkpoint.
TEST_CASE("communication: a rank whose disk is slow is waited for", "[long]") {
  const TemporaryFolder scratch;
  const Args base = sets({"dist.timeout_s=2", "dist.shard_optimizer=true", "checkpoint.every_steps=2"});
  const std::vector<std::string> distances = {"eval.fid_every_steps=2", "eval.fid_samples=8", "sample.steps=2",
                                              "data.num_images=64"};
  struct Case {
    const char *name, *call, *path;
    int rank;
    std::vector<std::string> settings;
  };
  const std::vector<Case> cases = {{"update", "pwrite", "model.safetensors", 1, {"checkpoint.buffer_gib=0.0001"}},
                                   {"waiting", "pwrite", "optimizer.safetensors", 1, {"checkpoint.async=false"}},
                                   {"open", "open", ".tmp_step_", 1, {"checkpoint.async=false"}},
                                   {"commit", "rename", ".tmp_step_", 0, {"checkpoint.async=false"}},
                                   {"best", "rename", ".tmp_best", 0, distances}};
  std::vector<std::unique_ptr<Process>> jobs;
  for (const Case& c : cases) {
    const RunOptions slow{.environment = trap(c.call, c.path, "sleep:4.5", c.rank)};
    const Args command = mpirun(2, tiny_ditrain(scratch / c.name, 4, base + sets(c.settings)));
    jobs.push_back(std::make_unique<Process>(command, slow));
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(cases[i].name);
    const Result result = jobs[i]->wait();
    REQUIRE_EXIT(result, 0);
    CHECK_THAT(result.out + result.err, Contains("writes to its disk"));
  }
}

// Where all ranks wait for themselves, one rank for another, and a run has a single rank.
TEST_CASE("communication: a disk that hangs longer than checkpoint.timeout_s ends the run, which names its host") {
  const TemporaryFolder scratch;
  const Args base = sets({"dist.timeout_s=0", "checkpoint.timeout_s=1", "checkpoint.every_steps=2"});
  struct Case {
    const char *name, *call, *path;
    int rank, ranks;
    std::vector<std::string> settings;
  };
  const std::vector<Case> cases = {{"writing", "pwrite", "optimizer.safetensors", 1, 2, {"dist.shard_optimizer=true"}},
                                   {"commit", "rename", ".tmp_step_", 0, 2, {}},
                                   {"alone", "pwrite", "model.safetensors", 0, 1, {}}};
  std::vector<std::unique_ptr<Process>> jobs;
  for (const Case& c : cases) {
    const Args command = tiny_ditrain(scratch / c.name, 8, base + sets(c.settings));
    jobs.push_back(std::make_unique<Process>(
        on_ranks(c.ranks, command),
        RunOptions{.timeout_s = 60, .environment = trap(c.call, c.path, "sleep:100", c.rank)}));
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(cases[i].name);
    const Result result = jobs[i]->wait();
    REQUIRE_EXIT(result, 1);
    CHECK_THAT(result.err, Contains("ditrain: error: ") && Contains("[checkpoint] the disk of ") &&
                               Contains("has done nothing for") && Contains("checkpoint.timeout_s: 1"));
    if (cases[i].rank > 0) CHECK_THAT(result.err, Contains("[rank 1 on "));
  }
}

TEST_CASE("communication: time in which all ranks are stopped is nobody's delay", "[long]") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  Process process(mpirun(2, tiny_ditrain(out, kForEver, sets({"dist.timeout_s=2"}))));
  REQUIRE(wait_until([&] { return read_metrics(out).size() > 3 || !process.running(); }));
  const pid_t ranks[] = {process_of_rank(0, out), process_of_rank(1, out)};
  REQUIRE((ranks[0] > 0 && ranks[1] > 0));
  for (const pid_t rank : ranks) REQUIRE(kill(rank, SIGSTOP) == 0);
  REQUIRE(wait_until([&] { return is_stopped(ranks[0]) && is_stopped(ranks[1]); }));
  const double stopped_s = ditrain::now_s();  // longer than a rank may be waited for: the time is what is tested
  REQUIRE(wait_until([&] { return ditrain::now_s() - stopped_s > 2.5; }));
  for (const pid_t rank : ranks) REQUIRE(kill(rank, SIGCONT) == 0);
  const size_t before = read_metrics(out).size();
  REQUIRE(wait_until([&] { return read_metrics(out).size() > before + 3 || !process.running(); }));
  process.send(SIGUSR2);
  REQUIRE_EXIT(process.wait(), 75);
}
