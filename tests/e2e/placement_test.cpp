// Where ranks compute, as ditrain tells it before a run and does it in one.
#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <set>
#include <sstream>

#include "ditrain/platform/affinity.hpp"
#include "run.hpp"
#include "support/skip.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

Result dry_run(const std::string& machine, const Args& arguments) {
  const TemporaryFolder scratch;
  return run(tiny_ditrain(scratch / "run", 4, Args{"--dry-run"} + arguments),
             {.environment = {"HWLOC_SYNTHETIC=" + machine}});
}

// Where the threads of a process may run, the main thread first, as Linux lists it.
std::vector<std::string> masks_of_threads(pid_t process) {
  const auto mask_of = [](const std::string& status) {
    std::istringstream lines(read_file(status));
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("Cpus_allowed_list:")) return line.substr(line.find_last_of(" \t") + 1);
    return std::string();
  };
  const std::string folder = "/proc/" + std::to_string(process);
  std::vector<std::string> masks = {mask_of(folder + "/status")};
  for (const auto& thread : fs::directory_iterator(folder + "/task"))
    if (thread.path().filename() != std::to_string(process)) masks.push_back(mask_of(thread.path() / "status"));
  return masks;
}

// The lines that say what was planned, in alphabetical order: a run prints them in another one.
std::multiset<std::string> plan_lines(const std::string& text) {
  std::multiset<std::string> lines;
  bool of_memory = false;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.size() > 9 && line[2] == ':' && line[5] == ':') line.erase(0, 9);  // a run tells the time
    of_memory = line.starts_with("memory plan") || (of_memory && line.starts_with("  "));
    bool told = of_memory;
    for (const char* begin : {"threads: ", "model: ", "cut: ", "adaLN gradients"}) told |= line.starts_with(begin);
    if (told) lines.insert(line);
  }
  return lines;
}

}  // namespace

TEST_CASE("placement: dry-run shows four ranks on the paper's node, a die each") {
  const Result r = dry_run("package:2 die:2 numa:4 core:38 pu:1",
                           Args{"--ranks", "4"} + sets({"memory.copy_cores=1", "parallel.comm_cores=auto"}));
  REQUIRE_EXIT(r, 0);
  CHECK_THAT(r.out, Contains("dies 4, NUMA domains 16, cores 608"));
  CHECK_THAT(r.out, Contains("threads: 151 per rank in 4 cluster(s) (NUMA domains), set by affinity mask; pinned"));
  CHECK_THAT(r.out, Contains("note: memory.copy_cores: 1 has no effect"));
  CHECK_THAT(r.out, Contains("3     cluster 3      37       570-606") && Contains("3     communication  1        607"));
  CHECK_THAT(r.out, Contains("mpirun -np 4 --map-by ppr:4:node:PE=152 --bind-to core"));
  CHECK_THAT(r.out, Contains("cut: columns and heads over 4 clusters (auto: 2 samples do not divide); "
                             "a run measures the bandwidth between NUMA domains first"));
}

TEST_CASE("placement: dry-run of one rank takes all cores of a pretended machine") {
  const Result r = dry_run("package:2 [numa] l3:8 core:8 pu:2", {});
  REQUIRE_EXIT(r, 0);
  CHECK_THAT(r.out, Contains("threads: 128 per rank in 2 cluster(s)"));
}

TEST_CASE("placement: dry-run of this machine tells the cut over clusters, and refuses what does not divide") {
  const TemporaryFolder scratch;
  for (const char* cut : {"samples", "n"}) {
    const Args settings = sets({"parallel.threads=2", "parallel.clusters=2", std::string("parallel.cut=") + cut});
    const Result dry = require_ok(tiny_ditrain(scratch / cut, 1, Args{"--dry-run"} + settings));
    CHECK_THAT(dry.out, Contains(std::string("cut: ") + (*cut == 'n' ? "columns and heads" : "samples") +
                                 " over 2 clusters (parallel.cut)"));
  }
  require_error(tiny_ditrain(scratch / "run", 1,
                             Args{"--dry-run"} + sets({"parallel.threads=2", "parallel.clusters=2",
                                                       "parallel.cut=samples", "train.micro_batch=1"})),
                {"parallel.cut: samples needs the same number of samples for every cluster"});
}

TEST_CASE("placement: what a dry run tells of ranks, cut, gradients and memory is what the run does") {
  const TemporaryFolder scratch;
  const Args settings =
      sets({"parallel.threads=2", "parallel.clusters=2", "parallel.cut=samples", "train.micro_batch=2",
            "model.num_heads=4", "dist.shard_optimizer=true", "dist.adaln=auto"});
  for (const int ranks : {1, 2}) {
    const std::string out = scratch / std::to_string(ranks);
    const Result dry = require_ok(on_ranks(ranks, tiny_ditrain(out, 1, settings + Args{"--dry-run"})));
    const Result real = require_ok(on_ranks(ranks, tiny_ditrain(out, 1, settings)));
    CHECK_THAT(dry.out, Contains("cut: samples over 2 clusters") && Contains("memory plan per rank"));
    CHECK((dry.out.find("adaLN gradients") != dry.out.npos) == (ranks > 1));
    CHECK(plan_lines(dry.out) == plan_lines(real.out));
  }
}

TEST_CASE("placement: impossible core counts end with exit code 2 and the way out") {
  const std::string machine = "package:1 core:8 pu:1";
  const Result comm = dry_run(machine, Args{"--ranks", "2"} + sets({"parallel.comm_cores=4"}));
  REQUIRE_EXIT(comm, 2);
  CHECK_THAT(comm.err, Contains("[placement] parallel.comm_cores and memory.copy_cores") &&
                           Contains("expected fewer than the 4 core(s) of this rank"));
  const Result clusters = dry_run(machine, sets({"parallel.clusters=9"}));
  REQUIRE_EXIT(clusters, 2);
  CHECK_THAT(clusters.err, Contains("[placement] parallel.clusters; got 9, expected at most the number of threads, 8"));
  const Result uneven = dry_run(machine, sets({"parallel.clusters=3"}));
  REQUIRE_EXIT(uneven, 2);
  CHECK_THAT(uneven.err, Contains("[placement] parallel.clusters does not divide the workers") &&
                             Contains("got 3 for 8 worker(s)") && Contains("try parallel.clusters: 2 or auto"));
}

TEST_CASE("placement: clusters do not change a bit of the weights, and topology.txt has the map") {
  const TemporaryFolder scratch;
  for (const char* clusters : {"1", "2"})
    REQUIRE_EXIT(run(tiny_ditrain(scratch / clusters, 3,
                                  sets({"parallel.threads=2", std::string("parallel.clusters=") + clusters}))),
                 0);
  const std::string file = "/checkpoints/step_00000003/model.safetensors";
  CHECK(read_file(scratch / ("1" + file)) == read_file(scratch / ("2" + file)));
  CHECK_THAT(read_file(scratch / "2/topology.txt"),
             Contains("2 cluster(s) (") && Contains("rank  role") && Contains("0     cluster 1  1"));
}

TEST_CASE("placement: threads that load data stay on the cores of their rank") {
  if (ditrain::platform::affinity_mask().size() < 2) SKIP("needs two cores");
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args settings = sets({"parallel.threads=1", "parallel.comm_cores=0", "data.loader_threads=3"});
  Process process(mpirun(2, tiny_ditrain(out, kForEver, settings), {"--bind-to", "none"}));
  REQUIRE(wait_until([&] { return read_metrics(out).size() > 1 || !process.running(); }));
  std::vector<std::string> cores;
  for (const int rank : {0, 1}) {
    const pid_t pid = process_of_rank(rank, out);
    REQUIRE(pid > 0);
    const std::vector<std::string> masks = masks_of_threads(pid);
    CAPTURE(rank, masks);
    cores.push_back(masks.front());  // of its worker
    CHECK(cores.back().find_first_of(",-") == std::string::npos);
    CHECK(std::count(masks.begin(), masks.end(), cores.back()) >= 1 + 3);
  }
  CHECK(cores[0] != cores[1]);
  process.send(SIGTERM);
  process.wait();
}
