// Scripts for clusters, with what they talk to played by shell scripts (Slurm) or by network namespaces (a second
// host).
#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <map>
#include <memory>

#include "ditrain/files/json.hpp"
#include "run.hpp"
#include "support/skip.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

constexpr int kNoNamespaces = 77;  // of scripts/two_hosts.sh

std::string script(const std::string& name) { return std::string(DITRAIN_SOURCE_DIR) + "/scripts/" + name; }

void write_program(const std::string& path, const std::string& text) {
  write_file(path, "#!/bin/bash\n" + text);
  fs::permissions(path, fs::perms::owner_all);
}

// The words of a #SBATCH line that begins with `option`.
std::string sbatch_value(const std::string& text, const std::string& option) {
  const std::string begin = "\n#SBATCH " + option + "=";
  const size_t at = text.find(begin);
  REQUIRE(at != text.npos);
  return text.substr(at + begin.size(), text.find('\n', at + 1) - at - begin.size());
}

// srun, mpirun and scontrol: the first two drop their own flags and start two ranks here, the last names the nodes of a
// job, or says that it was called.
// lscpu prints what it does on a node with this many hardware threads per core.
void write_cluster(const std::string& folder, int threads_per_core) {
  fs::create_directory(folder);
  const std::string start = std::string("[[ $* != *--version ]] || exec \"$@\"\n") +
                            "echo \"$flags\" >>\"$LAUNCHER_LOG\"\n" +
                            "unset ${!SLURM_*}  # or mpirun asks Slurm for the nodes\nexec " + DITRAIN_MPIRUN +
                            " -np 2 --oversubscribe \"$@\"\n";
  write_program(folder + "/srun", "while [[ $1 == -* ]]; do flags+=\" $1\"; shift; done\n" + start);
  write_program(folder + "/mpirun", "while [[ $1 == -* ]]; do flags+=\" $1 $2\"; shift 2; done\n" + start);
  write_program(folder + "/scontrol",
                "if [[ $1 == show ]]; then tr , '\\n' <<<\"$3\"; else echo \"scontrol $*\" >>\"$LAUNCHER_LOG\"; fi\n");
  write_program(folder + "/lscpu", "echo 'CPU(s):                608'\necho 'Thread(s) per core:    " +
                                       std::to_string(threads_per_core) + "'\necho 'Core(s) per socket:    152'\n");
}

}  // namespace

namespace {

// A job of the script in a folder of its own.
struct Job {
  std::string launcher;
  int threads_per_core;
  TemporaryFolder scratch = {};
  std::string out = scratch / "run", log = scratch / "launcher.log", batch = script("slurm/many_nodes.sbatch");
  Args command = {};
  RunOptions options = {};
  std::unique_ptr<Process> process = {};

  Job(const std::string& launched_by, int threads) : launcher(launched_by), threads_per_core(threads) {
    write_cluster(scratch / "bin", threads_per_core);
    Args ditrain = tiny_ditrain(out, kForEver);
    options.environment = {"DITRAIN=" + ditrain.front(),
                           "DITRAIN_ELASTIC=" + script("slurm/elastic.sh"),
                           "LAUNCHER_LOG=" + log,
                           "SLURM_JOB_ID=4711",
                           "SLURM_JOB_NODELIST=node1,node2",
                           "SLURM_NTASKS=8",
                           "SLURM_NTASKS_PER_NODE=4",
                           "SLURM_CPUS_PER_TASK=38"};
    ditrain.erase(ditrain.begin());
    command =
        Args{"/usr/bin/env", "PATH=" + scratch / "bin" + ":/usr/bin:/bin", "/bin/bash", batch, "--measure", "off"};
    if (launcher != "srun") command = command + Args{"--launcher", launcher};
    command = command + ditrain;
  }
  void start(const Args& more = {}) { process = std::make_unique<Process>(command + more, options); }
};

}  // namespace

// The jobs run side by side, since most of their time is mpirun's.
TEST_CASE("Slurm: a stop signal ends in a checkpoint, exit code 75 and a job that is queued again") {
  std::vector<std::unique_ptr<Job>> jobs;
  for (const char* launcher : {"srun", "mpirun"})
    for (const int threads : {1, 2}) jobs.push_back(std::make_unique<Job>(launcher, threads));
  for (const auto& job : jobs) job->start();
  for (const auto& job : jobs) {
    CAPTURE(job->launcher, job->threads_per_core);
    REQUIRE(wait_until([&] { return read_metrics(job->out).size() > 3 || !job->process->running(); }));
    CHECK(sbatch_value(read_file(job->batch), "--signal").starts_with("B:"));  // the script, which tells the ranks
    job->process->send(SIGUSR2);
  }
  std::map<const Job*, int64_t> steps;
  for (const auto& job : jobs) {
    CAPTURE(job->launcher, job->threads_per_core);
    const Result result = job->process->wait();
    REQUIRE_EXIT(result, 75);
    CHECK_THAT(result.out, Contains("checkpoint written; --resume auto goes on"));
    const std::string said = read_file(job->log);
    CHECK_THAT(said, Contains("scontrol requeue 4711"));
    const std::string cores = std::to_string(38 / job->threads_per_core);  // of 38 hardware threads
    CHECK_THAT(said, Contains(job->launcher == "mpirun"
                                  ? "--host node1:4,node2:4 -np 8 --map-by ppr:4:node:PE=" + cores + " --bind-to core"
                                  : "--nodelist=node1,node2 --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpu-bind=cores "
                                    "--cpus-per-task=38 --wait=20"));
    steps[job.get()] = checkpoints(job->out).back() + 2;
  }

  // The job that was queued again goes on, and one that fails is not queued.
  for (const auto& job : jobs) job->start(sets({"train.steps=" + std::to_string(steps[job.get()])}));
  for (const auto& job : jobs) {
    CAPTURE(job->launcher, job->threads_per_core);
    REQUIRE_EXIT(job->process->wait(), 0);
    REQUIRE(steps_are_complete(read_metrics(job->out), steps[job.get()]));
  }
  for (const auto& job : jobs) job->start(sets({"train.stepz=1"}));
  for (const auto& job : jobs) {
    CAPTURE(job->launcher, job->threads_per_core);
    REQUIRE_EXIT(job->process->wait(), 2);
    CHECK(read_file(job->log).find("requeue") == read_file(job->log).rfind("requeue"));
  }
}

TEST_CASE("Slurm: the numbers of the script are those that a dry run prints for such nodes") {
  const std::string machine = "HWLOC_SYNTHETIC=package:2 die:2 numa:4 core:38 pu:1";
  const std::string text = read_file(script("slurm/many_nodes.sbatch"));
  const std::string nodes = sbatch_value(text, "--nodes"), tasks = sbatch_value(text, "--ntasks-per-node");
  const std::string cpus = sbatch_value(text, "--cpus-per-task");
  const std::string ranks = std::to_string(std::stoi(nodes) * std::stoi(tasks));
  const TemporaryFolder scratch;
  const Result dry = require_ok(
      tiny_ditrain(scratch / "run", 4, Args{"--dry-run", "--ranks", ranks} + sets({"train.global_batch=" + ranks})),
      {.environment = {machine}});
  CHECK_THAT(dry.out, Contains("srun --nodes=" + nodes + " --ntasks=" + ranks + " --ntasks-per-node=" + tasks +
                               " --cpus-per-task=" + cpus + " --cpu-bind=cores --wait=20 "));
  CHECK_THAT(dry.out, Contains("mpirun -np " + ranks + " --map-by ppr:" + tasks + ":node:PE=" + cpus));
}

TEST_CASE("plan: the lines that it prints can be given to ditrain, and more nodes than there are are refused") {
  const std::string configs = DITRAIN_CONFIG_DIR;
  const Args wanted = Args{"--config", configs + "/quickstart.yaml"} + sets({"optimizer.betas=[0.9,0.99]"});
  const auto plan = [&](const Args& more) { return run(program("ditrain", Args{"plan"} + wanted + more)); };
  const Args platform = {"--platform", configs + "/platforms/ethernet_10g.yaml"};
  const Result result = plan(platform + Args{"--nodes", "4"});
  REQUIRE_EXIT(result, 0);
  CHECK_THAT(result.out, Contains("  1. ") && Contains("  5. ") && Contains("why not otherwise") &&
                             Contains("\n     sbatch --nodes=4 --ntasks-per-node="));
  const size_t line = result.out.rfind(" --bind-to core ditrain ") + 24;  // of the fifth
  const std::string given = result.out.substr(line, result.out.find('\n', line) - line);
  CHECK_THAT(given, Contains(" --set 'optimizer.betas=[0.9,0.99]' --out runs/quickstart --set "));
  const std::string ditrain = std::string(DITRAIN_PROGRAM_DIR) + "/ditrain";
  REQUIRE_EXIT(run({"/bin/sh", "-c", "'" + ditrain + "' --print-config " + given}), 0);
  const Result too_many = plan(platform + Args{"--nodes", "97"});
  REQUIRE_EXIT(too_many, 2);
  CHECK_THAT(too_many.err, Contains("has 96 node(s); got 97 nodes, expected 1 to 96"));
  const Result alone = plan({"--nodes", "4"});
  REQUIRE_EXIT(alone, 2);
  CHECK_THAT(alone.err, Contains("--nodes is for --platform"));
}

TEST_CASE("two hosts: ranks that only TCP connects learn what two ranks of one host learn") {
  const TemporaryFolder scratch;
  const Args probe{script("two_hosts.sh"), "/bin/true"};
  const Result allowed = run(probe);
  if (allowed.exit_code == kNoNamespaces) SKIP(allowed.err);
  REQUIRE_EXIT(allowed, 0);
  const std::vector<std::string> buckets = {"dist.bucket_mib=0.02"};
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(scratch / "one", 4, sets(buckets)))), 0);
  const auto expected = column(read_metrics(scratch / "one"), "loss");
  int ranks_per_host = 1;
  const auto on_two = [&](const std::string& name, const std::vector<std::string>& settings, double tolerance) {
    INFO(name);
    const std::string per_host = std::to_string(ranks_per_host), ranks = std::to_string(2 * ranks_per_host);
    const Result result = require_ok(Args{script("two_hosts.sh"), "--gbit", "1", "--ranks-per-host", per_host} +
                                     tiny_ditrain(scratch / name, 4, sets(buckets) + sets(settings) + Args{"--trace"}));
    CHECK_THAT(result.out, Contains("ranks: " + ranks + " on 2 node(s)"));
    const auto got = column(read_metrics(scratch / name), "loss");
    CHECK(largest_relative_difference(got, expected) <= tolerance);
    const auto trace = read_json(scratch / name + "/trace.json");
    CHECK(trace.at("otherData").at("largest_clock_error_us").get<double>() > 0);
    CHECK_THAT(ditrain::files::json_text(trace.at("traceEvents")),
               Contains("rank 0 (ditrain-a)") && Contains("rank " + std::to_string(ranks_per_host) + " (ditrain-b)"));
  };
  // Two terms have one sum: only the norm, which clips, is added in another order.
  on_two("hierarchical", {"dist.allreduce=hierarchical"}, 1e-6);
  on_two("flat", {"dist.allreduce=flat"}, 1e-6);
  on_two("bf16", {"dist.wire=bf16"}, 1e-2);
  CHECK(column(read_metrics(scratch / "bf16"), "loss") != expected);  // gradients were rounded on their way
  // Memory inside a host, TCP between them: four terms are added in another order.
  ranks_per_host = 2;
  on_two("two levels", {"dist.allreduce=hierarchical"}, 1e-5);
}
