// ditrain's flags, and what a run folder holds.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "ditrain/files/json.hpp"
#include "ditrain/platform/affinity.hpp"
#include "ditrain/version.hpp"
#include "run.hpp"
#include "support/skip.hpp"

using namespace ditrain::e2e;
using Catch::Contains;
using Catch::StartsWith;

TEST_CASE("command line: help fits two screens, reaches every key, version is that of the build") {
  const Result help = require_ok(program("ditrain", {"--help"}), {.environment = {"COLUMNS=80"}});
  CHECK(std::count(help.out.begin(), help.out.end(), '\n') <= 100);
  for (const char* text :
       {"--config FILE", "--set KEY=VALUE...", "--out DIR", "--resume auto|DIR", "--maxh H", "--dry-run", "--ranks N",
        "--print-config", "--trace [FILE]", "--strict", "--explain-memory [FILE.svg]", "--help", "--version",
        "train.global_batch", "[SECTION|KEY|all|man|bash]", "sample.every_steps", "75 stopped"})
    CHECK_THAT(help.out, Contains(text));
  const Result key = require_ok(program("ditrain", {"--help", "on_bad_file"}));
  CHECK_THAT(key.out, StartsWith("data.on_bad_file\n  meaning "));
  require_error(program("ditrain", {"--help", "on_bad_flie"}), {"try --help on_bad_file"});
  const Result version = require_ok(program("ditrain", {"--version"}));
  REQUIRE(version.out == std::string("ditrain ") + ditrain::kVersion + "\n");
}

TEST_CASE("command line: print-config can be read again and is what the run folder keeps") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args changed = sets({"optimizer.betas=[0.8, 0.95]", "train.seed=7"});
  const Result printed = require_ok(tiny_ditrain(out, 2, changed + Args{"--print-config"}));
  REQUIRE_FALSE(fs::exists(out));
  REQUIRE_THAT(printed.out, Contains("betas: [0.8, 0.95]") && Contains("seed: 7"));
  write_file(scratch / "again.yaml", printed.out);
  const Result again = require_ok(program("ditrain", {"--config", scratch / "again.yaml", "--print-config"}));
  REQUIRE(again.out == printed.out);
  REQUIRE_EXIT(run(program("ditrain", {"--config", scratch / "again.yaml", "--out", out})), 0);
  REQUIRE(read_file(out + "/config.yaml") == printed.out);
}

TEST_CASE("command line: dry-run and explain-memory tell the plan and leave nothing behind") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Result dry = require_ok(tiny_ditrain(out, 100, {"--dry-run", "--ranks", "4", "--set", "parallel.threads=1"}));
  for (const char* text : {"memory plan per rank", "parameters", "4 rank(s): 2 sample(s) per rank", "threads:"})
    CHECK_THAT(dry.out, Contains(text));
  REQUIRE_FALSE(fs::exists(out));

  // What a start would not find.
  for (const char* setting :
       {"train.init_from=/none", "train.branch_from=/none", "sample.guide=/none", "kernels.tuned=/none"}) {
    INFO(setting);
    require_error(tiny_ditrain(out, 100, {"--dry-run", "--set", setting, "--set", "sample.every_steps=5"}), {"/none"});
  }
  require_error(tiny_ditrain(out, 100, {"--dry-run", "--resume", "/none"}),
                {"--resume: there is no such folder; got /none"});
  require_error(tiny_ditrain(out, 100, {"--dry-run", "--set", "log.prometheus=" + scratch / "x"}),
                {"expected a path that ends in .prom"});
  REQUIRE_FALSE(fs::exists(out));

  require_error(tiny_ditrain(out, 100, {"--dry-run", "--ranks", "3"}), {"got 8 samples over 3 ranks"});

  const Result explained = require_ok(tiny_ditrain(out, 100, {"--explain-memory", scratch / "plan.svg"}));
  CHECK_THAT(explained.out, Contains("stored for backward, node by node") && Contains("blocks.1"));
  const std::string picture = scratch / "none/plan.svg";
  const Result no_folder = run(tiny_ditrain(out, 100, {"--explain-memory", picture}));
  REQUIRE_EXIT(no_folder, 2);
  CHECK_THAT(no_folder.err, Contains("[" + picture + "] cannot write this file; got no folder " + scratch / "none" +
                                     "; try mkdir -p " + scratch / "none"));
  CHECK(no_folder.out == "");
  const std::string svg = read_file(scratch / "plan.svg");
  CHECK_THAT(svg, Catch::StartsWith("<svg ") && Catch::EndsWith("</svg>\n") && Contains("optimiser state"));
  const Result tiers = require_ok(tiny_ditrain(
      out, 100,
      {"--explain-memory", scratch / "tiers.svg", "--set", "memory.automem=planned", "--set", "memory.fast_gib=0.01"}));
  CHECK_THAT(tiers.out, Contains("expected per step"));
  CHECK_THAT(read_file(scratch / "tiers.svg"), Contains("Memory tiers over one step") && Contains("bulk tier, "));
  REQUIRE_FALSE(fs::exists(out));
}

TEST_CASE("command line: dry-run and explain-memory work before any data is there") {
  const auto latents = [](const Args& more) {
    return run(
        program("ditrain", Args{"--config", std::string(DITRAIN_CONFIG_DIR) + "/dit_xl2.yaml", "--ranks", "4", "--set",
                                "model.name=DiT-S/2", "--set", "train.micro_batch=1", "--set", "parallel.threads=1"} +
                               more));
  };
  const Result dry = latents({"--dry-run"});
  REQUIRE_EXIT(dry, 0);
  for (const char* text :
       {"model: DiT-S/2", "data: data.path is not set; with --set data.path=DIR", "memory plan per rank",
        "4 rank(s): 28 sample(s) per rank and step in micro-batches of 1, 1000 steps\n"})
    CHECK_THAT(dry.out, Contains(text));
  REQUIRE_EXIT(latents({"--explain-memory"}), 0);

  const Result wrong = latents({"--dry-run", "--set", "data.path=/nowhere"});
  REQUIRE_EXIT(wrong, 2);
  CHECK_THAT(wrong.err, Contains("cannot list the folder '/nowhere'"));
}

TEST_CASE("run folder: metrics, topology, config, log and checkpoints of the contract") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args more = sets({"checkpoint.every_steps=1", "sample.every_steps=2", "sample.num_images=4", "sample.steps=2",
                          "eval.every_steps=4", "eval.num_images=8"});
  const Result result = require_ok(mpirun(2, tiny_ditrain(out, 4, more)));
  const auto metrics = read_metrics(out);
  REQUIRE(steps_are_complete(metrics, 4));
  for (const auto& line : metrics) {
    CAPTURE(ditrain::files::json_text(line));
    for (const char* key : {"loss", "mse", "vb", "lr", "grad_norm", "images_per_second", "tflops", "mfu"})
      CHECK(line.at(key).get<double>() > 0);
    CHECK(line.at("loss").get<double>() ==
          Approx(line.at("mse").get<double>() + line.at("vb").get<double>()).epsilon(1e-6));
    for (const char* key : {"data", "forward", "backward", "optimizer"})
      CHECK(line.at("seconds").at(key).get<double>() > 0);
    CHECK(line.at("seconds").at("allreduce_exposed").get<double>() >= 0);
    CHECK(line.at("memory").at("rss_bytes").get<int64_t>() > (1 << 20));
    CHECK(line.at("memory").at("bulk_peak_bytes").get<int64_t>() > 0);
    CHECK(line.at("memory").contains("fast_peak_bytes"));
    CHECK_FALSE(line.contains("non_finite"));
  }
  for (const char* key : {"val_mse", "val_mse_wrong_label", "sample_class_accuracy"})
    CHECK(metrics.back().contains(key));
  // A checkpoint is written after the line of its step, so its time stands in the next line, unless samples follow.
  CHECK(metrics[0].at("seconds").at("checkpoint").get<double>() == 0);
  CHECK(metrics[1].at("seconds").at("checkpoint").get<double>() > 0);
  CHECK_THAT(read_file(out + "/topology.txt"),
             Contains("ranks: 2 on 1 node(s)") && Contains("threads: ") && Contains("kernels: "));
  CHECK_THAT(read_file(out + "/log.txt"), Contains("ranks: 2") && Contains("phase [s]"));
  CHECK(fs::is_regular_file(out + "/samples/step_00000002.png"));
  const auto facts = read_json(out + "/samples/samples.json");
  CHECK(facts.at("program") == "ditrain");
  CHECK(facts.at("step") == metrics.back().at("step"));
  CHECK(facts.at("checkpoint") == out);
  CHECK(facts.at("weights") == "ema");
  const auto state = read_json(checkpoint_of(out, 4) + "/state.json");
  CHECK(state.at("world_size") == 2);
  CHECK_FALSE(state.at("isa").get<std::string>().empty());
  for (const char* text : {"memory plan", "FMA peak", "phase [s]", "wall", "step 4/4"})
    CHECK_THAT(result.out, Contains(text));
}

TEST_CASE("log: few lines before the first step, each with its time, and closing lines say where to go on") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args grids = sets({"sample.every_steps=2", "sample.num_images=2", "sample.steps=2", "log.level=info"});
  const Result result = require_ok(mpirun(2, tiny_ditrain(out, 2, sets({"log.every_steps=1"}) + grids)));
  const size_t first_step = result.out.find(" step 1/2 (");
  REQUIRE(first_step != std::string::npos);
  CHECK(std::count(result.out.begin(), result.out.begin() + std::ptrdiff_t(first_step), '\n') < 15);
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) CHECK_THAT(line, Catch::Matches("[0-9]{2}:[0-9]{2}:[0-9]{2} .*"));
  CHECK_THAT(result.out, !Contains("memory plan per rank") && Contains("/topology.txt\n"));
  for (const std::string detail : {"memory plan per rank", "caches:", "gemm: "}) {
    CHECK_THAT(read_file(out + "/topology.txt"), Contains(detail));
    CHECK_THAT(read_file(out + "/log.txt"), Contains(" D " + detail));
  }
  const std::string end =
      result.out.substr(result.out.find("advice") == std::string::npos ? 0 : result.out.find("phase [s]"));
  CHECK_THAT(end, Contains(" samples: " + out + "/samples/step_00000002.png\n") &&
                      Contains(" report: " + out + "/report.html\n") &&
                      Contains("ditsample --checkpoint " + out + " --out " + out + "/images\n"));
}

namespace {

// What a lane shows lies inside of what began before it, or after it: else viewers draw it wrong.
void require_nested(const nlohmann::json& events) {
  constexpr double kRounding_us = 0.002;
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> lanes;  // begin, end
  for (const auto& e : events)
    if (e.at("ph") == "X")
      lanes[{e.at("pid"), e.at("tid")}].emplace_back(e.at("ts"), e.at("ts").get<double>() + e.at("dur").get<double>());
  for (auto& [lane, spans] : lanes) {
    std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<double> open;  // ends of what is under way
    for (const auto& [begin, end] : spans) {
      while (!open.empty() && open.back() <= begin + kRounding_us) open.pop_back();
      REQUIRE((open.empty() || end <= open.back() + kRounding_us));
      open.push_back(end);
    }
  }
}

}  // namespace

namespace {

// The command with these file descriptors closed (">&- 2>&-"), as daemons and some job systems start programs.
Args with_closed(const std::string& closed, const Args& command) {
  return Args{"/bin/sh", "-c", "exec \"$0\" \"$@\" " + closed} + command;
}

}  // namespace

TEST_CASE("closed streams: nothing of stdout and stderr goes into other files") {
  const TemporaryFolder scratch;
  const auto lines_of_log = [&](const std::string& out) {
    std::vector<std::string> lines;
    std::istringstream log(read_file(out + "/log.txt"));
    for (std::string line; std::getline(log, line);) lines.push_back(line);
    return lines;
  };
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "open", 2)), 0);
  const size_t expected = lines_of_log(scratch / "open").size();
  for (const char* closed : {">&-", "2>&-", "<&- >&- 2>&-"}) {
    CAPTURE(closed);
    const std::string out = scratch / "closed";
    fs::remove_all(out);
    REQUIRE_EXIT(run(with_closed(closed, tiny_ditrain(out, 2))), 0);
    const auto lines = lines_of_log(out);
    CHECK(lines.size() == expected);
    for (const std::string& line : lines)
      CHECK_THAT(line, Catch::Matches("[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]+ [DIW] .*"));
    CHECK(steps_are_complete(read_metrics(out), 2));
    CHECK(different_files(checkpoint_of(out, 2), checkpoint_of(scratch / "open", 2)).empty());
  }
  REQUIRE_EXIT(run(with_closed(">&- 2>&-", tiny_ditrain(scratch / "open", 2))), 2);  // holds a run
  REQUIRE_EXIT(run(with_closed(">&-", program("ditsample", {"--checkpoint", scratch / "open", "--out",
                                                            scratch / "images", "--num", "1", "--steps", "2"}))),
               0);
}

TEST_CASE("full disk behind stdout: what only prints fails") {
  for (const Args& command :
       {program("ditrain", {"--version"}), program("ditexport", {"--help"}),
        program("ditrain", {"--config", std::string(DITRAIN_CONFIG_DIR) + "/quickstart.yaml", "--print-config"})}) {
    CAPTURE(command);
    require_error(with_closed("> /dev/full", command), {"[stdout] not all of the output could be written"}, 1);
  }
}

TEST_CASE("trace: a timeline of both ranks in Chrome's format") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(out, 3, {"--trace"}))), 0);
  const auto trace = read_json(out + "/trace.json");
  CHECK(trace.at("otherData").at("ranks") == 2);
  CHECK(trace.at("otherData").at("events_left_out") == 0);
  std::set<int> ranks;
  std::set<std::string> categories, phases, processes, lanes;
  for (const auto& event : trace.at("traceEvents")) {
    const std::string name = event.at("name");
    ranks.insert(event.at("pid").get<int>());
    if (name == "process_name") processes.insert(event.at("args").at("name"));
    if (name == "thread_name") lanes.insert(event.at("args").at("name"));
    if (event.at("ph") == "M") continue;
    REQUIRE(event.at("ph") == "X");
    categories.insert(event.at("cat").get<std::string>());
    if (event.at("cat") == "phase") phases.insert(name);
    REQUIRE(event.at("dur").get<double>() >= 0);
    REQUIRE(event.at("ts").is_number());
  }
  REQUIRE(ranks == std::set<int>{0, 1});
  CHECK(categories == std::set<std::string>{"step", "phase", "forward", "backward", "communication"});
  CHECK(phases == std::set<std::string>{"data", "prepare", "forward", "loss", "backward", "waiting for sums",
                                        "optimizer", "checkpoint"});
  CHECK(processes.size() == 2);
  CHECK_THAT(*processes.begin(), StartsWith("rank 0 ("));
  CHECK((lanes.contains("compute") && lanes.contains("communication")));
  require_nested(trace.at("traceEvents"));
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "named", 1, {"--trace", scratch / "timeline.json"})), 0);
  REQUIRE(read_json(scratch / "timeline.json").at("traceEvents").size() > 3);
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "inside", 1, {"--trace", scratch / "inside/t.json"})), 0);
  REQUIRE(fs::exists(scratch / "inside/t.json"));
  require_error(tiny_ditrain(scratch / "lost", 1, {"--trace", scratch / "none/t.json"}),
                {"[" + scratch / "none/t.json" + "] cannot write this file"});
  CHECK_FALSE(fs::exists(scratch / "lost"));
}

TEST_CASE("pinning: a rank that mpirun binds to fewer cores than wanted says so, with a line for mpirun") {
  const TemporaryFolder scratch;
  const Args command = tiny_ditrain(scratch / "run", 1, sets({"parallel.threads=2"}));
  const Result result = require_ok(mpirun(2, command, {"--bind-to", "core"}));
  INFO(result.text());
  if (std::thread::hardware_concurrency() < 2) SKIP("one core is all there is");
  CHECK_THAT(result.err, Contains("the affinity mask gives this rank 1 core(s) where 2 are wanted"));
  CHECK_THAT(result.err, Contains("mpirun -np "));
  CHECK_THAT(read_file(scratch / "run/topology.txt"), Contains("note: 2 of 2 ranks: the affinity mask"));
}

TEST_CASE("strict: a fallback is an error") {
  const TemporaryFolder scratch;
  const auto too_many = std::to_string(sysconf(_SC_NPROCESSORS_ONLN) + 1);
  const Args command = tiny_ditrain(scratch / "run", 2, sets({"parallel.threads=" + too_many}));
  REQUIRE_EXIT(run(command), 0);
  fs::remove_all(scratch / "run");
  require_error(command + Args{"--strict"}, {"[strict]", "not pinned"});
}

TEST_CASE("strict: memory that the system does not place where it should is a fallback") {
  const std::vector<int> mask = ditrain::platform::affinity_mask();
  if (mask.size() < 2 || mask[0] != 0 || mask[1] != 1) SKIP("needs PUs 0 and 1");
  const TemporaryFolder scratch;
  // Two NUMA domains whose memory nodes this machine does not have.
  const RunOptions options{.environment = {"HWLOC_SYNTHETIC=package:1 numa:2(indexes=1000,1001) core:1 pu:1"}};
  const Args command = tiny_ditrain(scratch / "run", 2, sets({"parallel.threads=2", "parallel.clusters=2"}));
  const Result strict = run(command + Args{"--strict"}, options);
  REQUIRE_EXIT(strict, 2);
  CHECK_THAT(strict.err, Contains("[strict]") && Contains("memory is not placed on NUMA node(s) 1000-1001: mbind: "));
  REQUIRE_EXIT(run(command, options), 0);
  CHECK_THAT(read_file(scratch / "run/topology.txt"), Contains("note: memory is not placed on NUMA node(s) 1000-1001"));
}
