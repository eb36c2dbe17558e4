// Runs that are stopped from outside: by signals, by their time limit, and by kill -9 while they write.
#include <catch2/catch.hpp>
#include <csignal>
#include <random>
#include <sstream>

#include "ditrain/weights/safetensors.hpp"
#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

bool has_steps(const std::string& out, int64_t steps) {
  const auto metrics = read_metrics(out);
  return !metrics.empty() && metrics.back().at("step") >= steps;
}

int64_t last_step(const std::string& out) {
  const auto metrics = read_metrics(out);
  return metrics.empty() ? 0 : metrics.back().at("step").get<int64_t>();
}

// The run stopped with a checkpoint of its last step and goes on from there.
void require_goes_on(const std::string& out, int ranks) {
  REQUIRE_FALSE(checkpoints(out).empty());
  const int64_t step = checkpoints(out).back();
  REQUIRE(step == last_step(out));
  const Args command = tiny_ditrain(out, step + 2, {"--resume", "auto"});
  REQUIRE_EXIT(run(on_ranks(ranks, command)), 0);
  REQUIRE(steps_are_complete(read_metrics(out), step + 2));
}

std::string parent_of(const fs::path& process) {
  std::istringstream stat(read_file((process / "stat").string()));
  std::string text, state, parent;
  std::getline(stat, text, ')');  // the name may hold spaces
  stat >> state >> parent;
  return parent;
}

// Processes whose parent is `parent`.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    if (parent_of(entry.path()) == std::to_string(parent)) children.push_back(pid_t(std::stol(name)));
  }
  return children;
}

// The rank 0 among the processes that this mpirun started; 0 if there is none.
pid_t rank_0_of(pid_t mpirun_pid) {
  for (pid_t child : children_of(mpirun_pid)) {
    const std::string environment = read_file("/proc/" + std::to_string(child) + "/environ");
    if (environment.find(std::string("OMPI_COMM_WORLD_RANK=0") + '\0') != environment.npos) return child;
  }
  return 0;
}

bool is_alive(pid_t pid) {
  std::istringstream stat(read_file("/proc/" + std::to_string(pid) + "/stat"));
  std::string text, state;
  std::getline(stat, text, ')');
  stat >> state;
  return !state.empty() && state != "Z";
}

bool catches(pid_t pid, int signal_number) {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status"), key = "SigCgt:";
  const size_t at = status.find(key);
  return at != status.npos &&
         (std::stoull(status.substr(at + key.size()), nullptr, 16) >> (signal_number - 1) & 1) != 0;
}

bool has_temporaries(const std::string& out) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(out + "/checkpoints", ignored))
    if (entry.path().filename().string().starts_with('.')) return true;
  return false;
}

// A checkpoint of a step after `step` is being written.
bool is_writing_after(const std::string& out, int64_t step) {
  const std::string prefix = ".tmp_step_";
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(out + "/checkpoints", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && std::stoll(name.substr(prefix.size())) > step) return true;
  }
  return false;
}

// Whatever is visible under the name of a checkpoint can be read to its end.
void require_intact_checkpoints(const std::string& out) {
  REQUIRE_FALSE(checkpoints(out).empty());
  for (int64_t step : checkpoints(out)) {
    CAPTURE(step);
    for (const char* name : {"/model", "/ema", "/optimizer"})
      REQUIRE_NOTHROW(ditrain::weights::SafetensorsFile(checkpoint_of(out, step) + name + ".safetensors"));
    REQUIRE(read_json(checkpoint_of(out, step) + "/state.json").at("step") == step);
  }
}

}  // namespace

TEST_CASE("signals: USR1 writes a checkpoint and goes on, USR2 writes one and stops with 75") {
  const int ranks = GENERATE(1, 2);
  CAPTURE(ranks);
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args command = tiny_ditrain(out, kForEver);
  Process process(on_ranks(ranks, command));
  REQUIRE(wait_until([&] { return has_steps(out, 3); }));
  REQUIRE(checkpoints(out).empty());
  process.send(SIGUSR1);
  REQUIRE(wait_until([&] { return !checkpoints(out).empty(); }));
  const int64_t first = checkpoints(out).back();
  REQUIRE(wait_until([&] { return has_steps(out, first + 3); }));
  REQUIRE(process.running());
  process.send(SIGUSR2);
  REQUIRE_EXIT(process.wait(), 75);
  REQUIRE(checkpoints(out).size() == 2);
  require_goes_on(out, ranks);
}

TEST_CASE("signals: TERM, INT and HUP stop a single process with a checkpoint and 75") {
  const int signal_number = GENERATE(SIGTERM, SIGINT, SIGHUP);
  CAPTURE(signal_number);
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  Process process(tiny_ditrain(out, kForEver));
  REQUIRE(wait_until([&] { return has_steps(out, 2); }));
  process.send(signal_number);
  const Result result = process.wait();
  REQUIRE_EXIT(result, 75);
  REQUIRE_THAT(result.out, Contains("checkpoint written; --resume auto goes on"));
  require_goes_on(out, 1);
}

TEST_CASE("signals: a run outlives the reader of its output, as tee that Ctrl-C ends first") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run", status = scratch / "status";
  const Args command = tiny_ditrain(out, 3);
  REQUIRE_EXIT(run(Args{"/bin/sh", "-c", R"({ "$@"; echo $? >"$0"; } | head -n 1)", status} + command), 0);
  CHECK(read_file(status) == "0\n");
  CHECK(checkpoints(out) == std::vector<int64_t>{3});
}

TEST_CASE("signals: TERM to mpirun ends the ranks soon and the last periodic checkpoint is intact") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  Process process(mpirun(2, tiny_ditrain(out, kForEver, sets({"checkpoint.every_steps=4"}))));
  REQUIRE(wait_until([&] { return has_steps(out, 10); }));
  const std::vector<pid_t> ranks = children_of(process.pid());
  REQUIRE(ranks.size() >= 2);
  const double start_s = ditrain::now_s();
  process.send(SIGTERM);
  const Result result = process.wait();
  INFO(result.text());
  REQUIRE_FALSE(result.timed_out);
  CHECK(result.exit_code != 0);
  CHECK(ditrain::now_s() - start_s < 20);
  for (pid_t rank : ranks) CHECK(wait_until([&] { return !is_alive(rank); }, 10));

  require_intact_checkpoints(out);
  const int64_t step = checkpoints(out).back();
  REQUIRE(step >= 8);
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(out, step + 10, {"--resume", "auto"}))), 0);
  REQUIRE(last_step(out) == step + 10);
  REQUIRE(steps_increase(read_metrics(out)));
}

TEST_CASE("signals: one that comes before all ranks have started stops the run after its first step") {
  const int signal_number = GENERATE(SIGTERM, SIGUSR2);
  CAPTURE(signal_number);
  const TemporaryFolder scratch;
  const std::string out = scratch / "run", gate = scratch / "gate";
  const Args command = tiny_ditrain(out, kForEver);
  const Args late = {"sh", "-c", "while [ ! -e " + gate + " ]; do sleep 0.05; done; exec \"$@\"", "late"};
  Process process(Args{DITRAIN_MPIRUN, "--oversubscribe", "-np", "1"} + command + Args{":", "-np", "1"} + late +
                  command);
  pid_t rank_0 = 0;
  REQUIRE(wait_until([&] { return (rank_0 = process_of_rank(0, out)) > 0 && catches(rank_0, signal_number); }, 10));
  REQUIRE(kill(rank_0, signal_number) == 0);
  write_file(gate, "");
  REQUIRE_EXIT(process.wait(), 75);
  CHECK(last_step(out) == 1);
  require_goes_on(out, 2);
}

TEST_CASE("time limit: --maxh stops with a checkpoint and 75") {
  const int ranks = GENERATE(1, 2);
  CAPTURE(ranks);
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args command = tiny_ditrain(out, kForEver, {"--maxh", "0.0005"});  // 1.8 s
  const Result result = run(on_ranks(ranks, command));
  REQUIRE_EXIT(result, 75);
  REQUIRE(result.seconds > 1);
  require_goes_on(out, ranks);
}

TEST_CASE("time limit: a run that has to stop draws no pictures before its checkpoint") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  // 1 us is over after the first step.
  const Args pictures = sets({"sample.every_steps=1", "sample.num_images=1", "sample.steps=2"});
  REQUIRE_EXIT(run(tiny_ditrain(out, kForEver, pictures + Args{"--maxh", "3e-10"})), 75);
  CHECK(last_step(out) == 1);
  CHECK_FALSE(fs::exists(out + "/samples/step_00000001.png"));
}

TEST_CASE("kill -9 while checkpoints are written: the run goes on and ends with the same weights") {
  constexpr int64_t kSteps = 60;
  constexpr int kKills = 8;
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "whole", kSteps)), 0);
  const Args command = tiny_ditrain(out, kSteps, sets({"checkpoint.every_steps=1"}) + Args{"--resume", "auto"});
  std::mt19937 random(5);
  int torn = 0;
  for (int round = 0; round < kKills; ++round) {
    const int64_t from = (checkpoints(out).empty() ? 0 : checkpoints(out).back()) + int64_t(random() % 5);
    const double delay_s = round % 2 == 0 ? 0 : 1e-3 * double(random() % 40);
    CAPTURE(round, from, delay_s);
    Process process(command);
    REQUIRE(wait_until([&] { return is_writing_after(out, from) || !process.running(); }, 60, 1e-4));
    sleep_s(delay_s);  // any moment will do
    process.send(SIGKILL);
    REQUIRE_EXIT(process.wait(), 128 + SIGKILL);
    torn += has_temporaries(out) ? 1 : 0;
    if (!checkpoints(out).empty()) require_intact_checkpoints(out);
  }
  CHECK(torn >= 2);  // the kills did hit the writing
  REQUIRE_EXIT(run(command), 0);
  CHECK_FALSE(has_temporaries(out));
  CHECK(different_files(checkpoint_of(out, kSteps), checkpoint_of(scratch / "whole", kSteps)).empty());
  const auto metrics = read_metrics(out);
  CHECK(steps_increase(metrics));
  const std::vector<double> expected = column(read_metrics(scratch / "whole"), "loss");
  for (const auto& line : metrics) CHECK(line.at("loss") == expected.at(line.at("step").get<size_t>() - 1));
}

TEST_CASE("kill -9 of one rank while it writes a checkpoint: mpirun ends and the run goes on") {
  constexpr int64_t kSteps = 30;
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args command =
      mpirun(2, tiny_ditrain(out, kSteps, sets({"checkpoint.every_steps=1"}) + Args{"--resume", "auto"}));
  for (const int64_t from : {5, 12}) {
    Process process(command);
    REQUIRE(wait_until([&] { return is_writing_after(out, from) || !process.running(); }, 60, 1e-4));
    const pid_t rank_0 = rank_0_of(process.pid());
    REQUIRE(rank_0 > 0);
    REQUIRE(kill(rank_0, SIGKILL) == 0);
    const Result result = process.wait();
    INFO(result.text());
    REQUIRE_FALSE(result.timed_out);
    REQUIRE(result.exit_code != 0);
    require_intact_checkpoints(out);
  }
  REQUIRE_EXIT(run(command), 0);
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(scratch / "whole", kSteps))), 0);
  CHECK(different_files(checkpoint_of(out, kSteps), checkpoint_of(scratch / "whole", kSteps)).empty());
  CHECK(steps_increase(read_metrics(out)));
}
