// Ranks that die, compute something else, or are not what the others are.
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>

#include "ditrain/weights/safetensors.hpp"
#include "inputs.hpp"
#include "run.hpp"
#include "support/skip.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

// Flips the lowest bit of the first byte wherever the process holds these bytes in memory that it may write; returns
// how often. A cosmic ray, as it were.
int flip_bit(pid_t process, const std::string& pattern) {
  const std::string folder = "/proc/" + std::to_string(process);
  const int memory = open((folder + "/mem").c_str(), O_RDWR);
  if (memory < 0) return 0;
  int flips = 0;
  std::istringstream maps(read_file(folder + "/maps"));
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char mode[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, mode) != 3 || std::strncmp(mode, "rw", 2) != 0) continue;
    std::string content(end - begin, '\0');
    const ssize_t got = pread(memory, content.data(), content.size(), off_t(begin));
    if (got <= 0) continue;
    content.resize(size_t(got));
    for (size_t at = content.find(pattern); at != content.npos; at = content.find(pattern, at + 1)) {
      const char changed = char(pattern.front() ^ 1);
      flips += pwrite(memory, &changed, 1, off_t(begin + at)) == 1;
    }
  }
  close(memory);
  return flips;
}

// The first bytes of a weight, as a run of no learning rate holds them all the time.
std::string bytes_of_weight(const std::string& checkpoint) {
  const ditrain::weights::SafetensorsFile file(checkpoint + "/model.safetensors");
  const auto& view = file.tensor("blocks.1.mlp.fc1.weight");
  return std::string(reinterpret_cast<const char*>(view.data), 128);
}

Args rank_with_environment(const std::string& assignment, const Args& command) {
  return Args{"-np", "1", "-x", assignment} + command;
}

// Two ranks that are started differently.
Args two_programs(const Args& first, const Args& second) {
  return Args{DITRAIN_MPIRUN, "--oversubscribe"} + first + Args{":"} + second;
}

// Kills rank 1 as soon as `going`; what became of the job, which must end soon.
Result kill_rank_1(Process& process, const std::string& out, const std::function<bool()>& going) {
  REQUIRE(wait_until([&] { return going() || !process.running(); }));
  const pid_t rank_1 = process_of_rank(1, out);
  REQUIRE(rank_1 > 0);
  REQUIRE(kill(rank_1, SIGKILL) == 0);
  const double start = ditrain::now_s();
  const Result result = process.wait();
  CHECK(ditrain::now_s() - start < 30);
  return result;
}

}  // namespace

TEST_CASE("replicas: comparing them changes nothing, and takes a phase of its own") {
  const TemporaryFolder scratch;
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(scratch / "plain", 6))), 0);
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(scratch / "compared", 6, sets({"dist.verify_every=2"})))), 0);
  CHECK(different_files(checkpoint_of(scratch / "plain", 6), checkpoint_of(scratch / "compared", 6)).empty());
  REQUIRE(steps_are_complete(read_metrics(scratch / "compared"), 6));
  for (const auto& line : read_metrics(scratch / "compared"))
    CHECK((line.at("seconds").at("verify").get<double>() > 0) == (line.at("step").get<int64_t>() % 2 == 0));
}

TEST_CASE("replicas: a rank whose weights differ ends the run before a checkpoint is written") {
  const bool at_checkpoint = GENERATE(true, false);
  CAPTURE(at_checkpoint);
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(scratch / "still", 1, sets({"optimizer.lr=0"})))), 0);
  const std::string weight = bytes_of_weight(checkpoint_of(scratch / "still", 1));
  const std::string every = at_checkpoint ? "dist.verify_every=1000000" : "dist.verify_every=3";
  Process process(mpirun(2, tiny_ditrain(out, kForEver, sets({"optimizer.lr=0", every}))));
  REQUIRE(wait_until([&] { return read_metrics(out).size() > 3 || !process.running(); }));
  if (flip_bit(process_of_rank(1, out), weight) == 0)
    SKIP("this system does not let a test write into the memory of a process");
  if (at_checkpoint) process.send(SIGUSR1);
  const Result result = process.wait();
  REQUIRE_EXIT(result, 1);
  // The bit flips in the moving average and in the weights, one after the other: a comparison may come in between.
  CHECK_THAT(result.err, Contains("[replicas] after step") && Contains("differences on rank 1 (") &&
                             Contains(at_checkpoint ? ": weights" : "): ") && Contains("unlike rank 0") &&
                             Contains("--resume auto"));
  CHECK(result.err.find("error: ") == result.err.rfind("error: "));  // said once
  CHECK(checkpoints(out).empty());
}

TEST_CASE("kill -9 of mpirun: its ranks end at once, and the next run goes on in their folder") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  Process process(mpirun(2, tiny_ditrain(out, kForEver, sets({"checkpoint.every_steps=5"}))));
  REQUIRE(wait_until([&] { return checkpoints(out).size() > 1 || !process.running(); }));
  const pid_t ranks[] = {process_of_rank(0, out), process_of_rank(1, out)};
  REQUIRE(ranks[0] > 0);
  REQUIRE(ranks[1] > 0);
  process.send(SIGKILL);
  CHECK(wait_until([&] { return has_ended(ranks[0]) && has_ended(ranks[1]); }, 2));
  const int64_t steps = checkpoints(out).back() + 7;
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(out, steps, {"--resume", "auto"}))), 0);
  CHECK(steps_are_complete(read_metrics(out), steps));
}

TEST_CASE("kill -9 of a rank: the job ends soon and names it, and goes on from the last checkpoint to the same bits") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  Process process(mpirun(2, tiny_ditrain(out, kForEver, sets({"checkpoint.every_steps=5"}))));
  const Result result = kill_rank_1(process, out, [&] { return checkpoints(out).size() > 1; });
  INFO(result.text());
  CHECK(result.exit_code != 0);
  CHECK(result.exit_code != 75);
  CHECK_THAT(result.err, Contains("process rank 1") && Contains("signal 9"));  // mpirun says so; no other line
  CHECK_THAT(result.err, !Contains("ditrain: error"));

  const int64_t steps = checkpoints(out).back() + 7;
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(out, steps, {"--resume", "auto"}))), 0);
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(scratch / "whole", steps))), 0);
  CHECK(different_files(checkpoint_of(out, steps), checkpoint_of(scratch / "whole", steps)).empty());
  CHECK(steps_are_complete(read_metrics(out), steps));
}

TEST_CASE("kill -9 of a rank under a launcher that does not care: the watchdog of the others names it", "[long]") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  Process process(mpirun(2, tiny_ditrain(out, kForEver, sets({"dist.timeout_s=2"})), {"--enable-recovery"}));
  const Result result = kill_rank_1(process, out, [&] { return read_metrics(out).size() > 3; });
  INFO(result.text());
  CHECK_THAT(result.err, Contains("[watchdog]") && Contains("no answer at all: rank 1 ("));  // mpirun returns 0 then
}

namespace {

// Two ranks of a program that writes into `out`; rank 1 stands still before it opens its first file of this name,
// rank 0 is dead.
struct OrphanedRank {
  OrphanedRank(const Args& command, const std::string& out, const std::string& file)
      : job(mpirun(2, command, {"--enable-recovery"}), {.environment = trap("open", file, "stop", 1)}) {
    REQUIRE(wait_until([&] { return is_stopped(rank_1 = process_of_rank(1, out)) || !job.running(); }));
    const pid_t rank_0 = process_of_rank(0, out);
    REQUIRE(rank_0 > 0);
    REQUIRE(kill(rank_0, SIGKILL) == 0);
    REQUIRE(wait_until([&] { return has_ended(rank_0); }));
    REQUIRE(is_stopped(rank_1));
  }

  pid_t rank_1 = 0;
  Process job;
};

// With shards of checkpoint 2.
OrphanedRank orphan_of_training(const std::string& out) {
  const Args shards = sets({"dist.timeout_s=2", "dist.shard_optimizer=true", "checkpoint.every_steps=2"});
  return {tiny_ditrain(out, kForEver, shards), out, ".tmp_step_"};
}

}  // namespace

TEST_CASE("a run folder is locked until the last rank that writes has ended") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const OrphanedRank orphan = orphan_of_training(out);
  require_error(tiny_ditrain(out, 4), {out + " is used by a run that is alive: host ",
                                       "its rank 0 has ended, but not process " + std::to_string(orphan.rank_1)});
  Process third(tiny_ditrain(out, 4, {"--resume", "auto"}));
  REQUIRE(wait_until([&] { return has_open(third.pid(), out + "/.lock"); }));
  REQUIRE(kill(orphan.rank_1, SIGKILL) == 0);
  const Result waited = third.wait();
  REQUIRE_EXIT(waited, 0);
  CHECK_THAT(waited.out, Contains("waiting up to 30 s for it to end"));
}

// Where a file system does not keep locks; here somebody has removed the file.
TEST_CASE("a rank that outlives its rank 0 never writes into a checkpoint of the next run") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const OrphanedRank orphan = orphan_of_training(out);
  REQUIRE(fs::remove(out + "/.lock"));
  const Args settings = sets({"checkpoint.every_steps=2", "train.seed=77"}) + Args{"--resume", "auto"};
  Process next(tiny_ditrain(out, 2, settings), {.environment = trap("rename", ".tmp_step_", "stop")});
  REQUIRE(wait_until([&] { return is_stopped(next.pid()) || !next.running(); }));  // its files are written
  REQUIRE(kill(orphan.rank_1, SIGCONT) == 0);
  REQUIRE(wait_until([&] { return has_ended(orphan.rank_1); }));
  next.send(SIGCONT);
  REQUIRE_EXIT(next.wait(), 0);
  require_ok(program("ditverify", {"--checkpoint", checkpoint_of(out, 2)}));
  CHECK(checkpoints(out) == std::vector<int64_t>{2});
}

TEST_CASE(
    "ditdata: a rank that outlives its rank 0 keeps the folder locked, and writes into no file of the next call") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "latents";
  write_image_folder(scratch / "images", 2, 5);
  const auto encode = [&](const std::string& folder) {
    const std::string vae = std::string(DITRAIN_GOLDEN_DIR) + "/vae_names/vae_names_sd.safetensors";
    return program("ditdata", {"encode", "--from", scratch / "images", "--vae", vae, "--groups", "8", "--size", "16",
                               "--shard", "3", "--scale-factor", "0.5", "--out", folder});
  };
  const OrphanedRank orphan(encode(out), out, "/.latents_");
  require_error(encode(out), {"[" + out + "] another process writes to this folder; got host ",
                              "its rank 0 has ended, but not process " + std::to_string(orphan.rank_1)});

  // Where a file system does not keep locks; here somebody has removed the file.
  REQUIRE(fs::remove(out + "/.lock"));
  const std::string shard = "/latents_00001.safetensors";  // of rank 1
  Process next(encode(out), {.environment = trap("rename", "/.latents_00001", "stop")});
  REQUIRE(wait_until([&] { return is_stopped(next.pid()) || !next.running(); }));  // that file is written
  REQUIRE(kill(orphan.rank_1, SIGCONT) == 0);
  REQUIRE(wait_until([&] { return fs::exists(out + shard); }));
  REQUIRE(kill(orphan.rank_1, SIGKILL) == 0);
  next.send(SIGCONT);
  REQUIRE_EXIT(next.wait(), 0);
  REQUIRE_EXIT(run(encode(scratch / "alone")), 0);
  for (const auto& [path, content] : folder_content(scratch / "alone"))
    if (const std::string name = fs::path(path).filename(); name != ".lock")
      CHECK(read_file(out + "/" + name) == content);
}

TEST_CASE("ranks of another build, config, instruction set or command line are refused before anything is written") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args plain = Args{"-np", "1"} + tiny_ditrain(out, 2);
  Args another_build = tiny_ditrain(out, 2);
  fs::copy_file(another_build.front(), scratch / "ditrain");
  another_build.front() = scratch / "ditrain";
  std::ofstream(another_build.front(), std::ios::app) << '\n';
  const std::vector<std::pair<Args, std::vector<std::string>>> others = {
      {Args{"-np", "1"} + tiny_ditrain(out, 2, sets({"train.global_batch=16"})),
       {"[ranks] rank 1 (", "does not have the config of rank 0 (", "global_batch: 16", "global_batch: 8"}},
      {Args{"-np", "1"} + tiny_ditrain(out, 2, {"--trace"}), {"the command line of rank 0", "--trace"}},
      {Args{"-np", "1"} + another_build, {"does not have the program file of rank 0 (", "bytes with checksum"}},
      {rank_with_environment("DITRAIN_ISA=baseline", tiny_ditrain(out, 2)),
       {"the instruction set of rank 0", "got baseline", "mpirun -x DITRAIN_ISA"}}};
  std::vector<Args> commands;
  for (const auto& [other, texts] : others) commands.push_back(two_programs(plain, other));
  const std::vector<Result> results = run_side_by_side(commands);
  for (size_t i = 0; i < results.size(); ++i) require_refused(results[i], out, others[i].second);
}

TEST_CASE(
    "ranks of ditsample with other flags, another build or another checkpoint are refused before anything is drawn") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "images", trained = scratch / "run";
  REQUIRE_EXIT(run(tiny_ditrain(trained, 2, sets({"checkpoint.every_steps=1"}))), 0);
  const auto rank = [&](const Args& more) {
    return Args{"-np", "1"} + program("ditsample", Args{"--out", out, "--steps", "2", "--batch", "2"} + more);
  };
  const auto refused = [&](const Args& first, const Args& second, const std::vector<std::string>& texts) {
    CAPTURE(second);
    require_refused(run(two_programs(rank(first), rank(second))), out, texts);
  };
  const Args plain = {"--checkpoint", trained, "--num", "4", "--seed", "1"};
  refused(plain, {"--checkpoint", trained, "--num", "4", "--seed", "2"},
          {"ditsample: error: [ranks] rank 1 (", "does not have the command line of rank 0 (", "got --seed 2",
           "expected --seed 1", "the same flags for all ranks"});
  refused(plain, {"--checkpoint", trained, "--num", "5", "--seed", "1"}, {"got --num 5, expected --num 4"});
  refused(plain, plain + Args{"--cfg-scale", "3"}, {"got --cfg-scale 3, expected --cfg-scale left out"});
  refused(plain, plain + Args{"--grid", scratch / "grid.png"},
          {"got --grid " + scratch / "grid.png", "--grid left out"});
  refused(plain, {"--checkpoint", checkpoint_of(trained, 1), "--num", "4", "--seed", "1"},
          {"got --checkpoint " + checkpoint_of(trained, 1), "expected --checkpoint " + trained});

  // The same words, but other files: a file system that is not shared.
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "other/run", 2, sets({"model.hidden_size=48"}))), 0);
  const Args relative = {"--checkpoint", "run", "--num", "4", "--seed", "1"};
  const Args elsewhere =
      two_programs(Args{"-wdir", scratch.path()} + rank(relative), Args{"-wdir", scratch / "other"} + rank(relative));
  require_refused(run(elsewhere), out,
                  {"the config of the checkpoint of rank 0", "hidden_size: 48", "expected   hidden_size: 32"});

  require_ok(two_programs(rank(plain), rank(plain + Args{"--threads", "1"})));
}

TEST_CASE("Slurm: tasks without ranks are refused, a forgotten launcher is noticed") {
  const TemporaryFolder scratch;
  const Result lost = run(tiny_ditrain(scratch / "lost", 1), {.environment = {"SLURM_STEP_NUM_TASKS=4"}});
  REQUIRE_EXIT(lost, 2);
  CHECK_THAT(lost.err, Contains("each would train alone") && Contains("srun --mpi=pmix"));
  CHECK_FALSE(fs::exists(scratch / "lost"));
  const Result alone = require_ok(tiny_ditrain(scratch / "alone", 1), {.environment = {"SLURM_NTASKS=4"}});
  CHECK_THAT(alone.err, Contains("one rank, but the Slurm allocation is for 4 tasks"));
}
