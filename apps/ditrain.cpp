// ditrain: trains a Diffusion Transformer, alone or under mpirun / srun.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/config/command_line.hpp"
#include "ditrain/config/program.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/plan/dry_run.hpp"
#include "ditrain/plan/memory_check.hpp"
#include "ditrain/plan/memory_picture.hpp"
#include "ditrain/plan/planner.hpp"
#include "ditrain/plan/run_plan.hpp"
#include "ditrain/platform/signals.hpp"
#include "ditrain/report/page.hpp"
#include "ditrain/train/preflight.hpp"
#include "ditrain/train/trainer.hpp"

using namespace ditrain;

namespace {

const double kStart_s = now_s();

// Both run alone, without MPI.
const config::Command kReport = {.name = "report",
                                 .summary = "write a page that shows a run folder, or compares several",
                                 .positional = "DIR...",
                                 .flags = {{"out", "FILE", "the page (default: report.html in the first folder)"}}};
const config::Command kPlan = {
    .name = "plan",
    .summary = "find the fastest placement of a run on a cluster, with the lines that start it",
    .details =
        "It tries ranks per node, ranks per replica, micro-batches, recomputation, memory tiers, shards of the "
        "optimiser "
        "and buckets. The global batch and the precision stay: more than the order of sums would change with them.",
    .flags = {{"config", "FILE", "what to train, as of ditrain"},
              {"recipe", "FILE", "a YAML file whose keys replace those of --config", "", true},
              {"set", "KEY=VALUE", "override one key of the config", "", true},
              {"platform", "FILE",
               "the cluster, as those of platforms/ beside the installed configs (default: this machine, whose rates "
               "are measured)"},
              {"nodes", "N", "nodes of the cluster (default: all)"},
              {"all", "", "list every placement, not only the best"}}};

config::CommandLine make_command_line() {
  return config::CommandLine(config::Usage{
      .program = "ditrain",
      .summary = "train a Diffusion Transformer; alone or under mpirun / srun",
      .flags =
          {{"config", "FILE", "what to train: a YAML file, looked for here, in configs and among the installed ones"},
           {"recipe", "FILE", "a YAML file whose keys replace those of --config, as those of recipes/", "", true},
           {"set", "KEY=VALUE", "override one key of the config, as train.steps=100", "", true},
           {"out", "DIR", "run folder (default: runs/NAME of the config)"},
           {"resume", "auto|DIR",
            "resume from the last checkpoint of --out (auto starts anew without one), or from DIR"},
           {"maxh", "H",
            "stop with a checkpoint and exit code 75 before 99 % of H hours are over: while a step and a checkpoint "
            "fit in"},
           {"dry-run", "",
            "print placement, model and memory plan, predict the time of the run and the size of its checkpoints, then "
            "stop"},
           {"ranks", "N", "with --dry-run or --explain-memory: as if started on N ranks"},
           {"preflight", "[FILE]",
            "measure every node, name slow ones and what is wrong with them (with a file also as JSON), then stop"},
           {"slow-share", "S", "with --preflight: a node below this share of the median is slow (default 0.85)"},
           {"print-config", "", "print the effective config, then stop"},
           {"trace", "[FILE]", "write a timeline in Chrome's trace format (default OUT/trace.json)"},
           {"strict", "", "fallbacks (threads not pinned, ...) are errors"},
           {"explain-memory", "[FILE.svg]",
            "print what every layer stores, draw the memory plan (with tiers, each of them over a step) if a file is "
            "given, then stop"}},
      .details =
          "`ditrain --help SECTION|KEY|all` explains all other keys, as --help data or --help train.recompute.\n"
          "`ditrain report DIR... [--out FILE]` writes a page that shows a run, or compares several.\n"
          "`ditrain plan --config FILE [--platform FILE --nodes N]` says how to place a run on a cluster.\n"
          "Exit codes: 0 done, 1 failed while running, 2 bad usage or input, 75 stopped early with a checkpoint.\n"
          "Signals: USR1 writes a checkpoint; USR2, TERM, INT and HUP write one and stop.",
      .commands = {kReport, kPlan},
      .explains_keys = true});
}

std::string default_out(const std::string& config_path) {
  return "runs/" + std::filesystem::path(config_path).stem().string();
}

// That of --out, or the run folder that --resume goes on inside.
std::string run_folder(const config::CommandLine& line) {
  if (line.has("out")) return line.get_path("out");
  const std::string resume = line.has("resume") ? line.get_path("resume") : "";
  const std::filesystem::path config = line.get("config"), folder = std::filesystem::absolute(config).parent_path();
  const bool is_of_run =
      std::filesystem::exists(folder / "metrics.jsonl") || std::filesystem::exists(folder / "checkpoints" / "latest");
  if (resume == "auto" && config.filename() == "config.yaml" && is_of_run)
    throw InputError({.where = "command line",
                      .what = "--resume auto with the config of a run needs --out: without it, a new run would start",
                      .got = config,
                      .hint = "--out " + quoted_word(config.has_parent_path() ? config.parent_path().string() : ".")});
  if (!resume.empty() && resume != "auto" && std::filesystem::exists(resume + "/config.yaml")) return resume;
  return default_out(line.get("config"));
}

constexpr const char* kFirstConfig = "--config configs/quickstart.yaml, or quickstart.yaml of an installation";

// What to try without --config: that of the run which the line names, or one to begin with.
std::string config_to_try(const config::CommandLine& line) {
  for (const char* flag : {"resume", "out"}) {
    const std::filesystem::path config = std::filesystem::path(line.get(flag)) / "config.yaml";
    if (line.has(flag) && std::filesystem::exists(config)) return "--config " + quoted_word(config.string());
  }
  return kFirstConfig;
}

void explain_memory(const plan::RunPlan& run, const std::string& picture) {
  const plan::MemoryPlan& plan = run.memory;
  std::fputs(describe(plan).c_str(), stdout);
  if (run.automem) std::fputs(automem::describe(*run.automem).c_str(), stdout);
  std::printf("stored for backward, node by node:\n");
  for (const plan::MemoryItem& node : plan.kept)
    std::printf("  %-18s%12s  %s\n", node.name.c_str(), format_bytes(node.bytes).c_str(), node.note.c_str());
  if (!picture.empty()) plan::write_memory_svg(plan, picture, run.automem ? &*run.automem : nullptr);
}

/// A file that could not be written would be lost after the whole run. The folder --out is made later.
void check_beside_run(const std::string& file, const std::string& out) {
  const std::filesystem::path path(file);
  const std::filesystem::path folder = (path.parent_path() / "").lexically_normal();
  if (!path.empty() && folder != (std::filesystem::path(out) / "").lexically_normal()) files::check_output_file(path);
}

int body(int argc, char** argv, dist::Communicator& comm) {
  config::CommandLine line = make_command_line();
  platform::remove_signal_flags();  // what only prints ends with its reader
  if (!line.parse(argc, argv)) return kExitDone;
  if (!line.has("print-config") && !line.has("explain-memory") && !line.has("dry-run") && !line.has("preflight"))
    platform::install_signal_flags();
  if (!line.has("config"))
    throw InputError({.where = "command line", .what = "--config FILE is missing", .hint = config_to_try(line)});
  const config::Config config = config::load_config(line.get("config"), line.get_all("set"), line.get_all("recipe"));
  const int ranks = line.has("ranks") ? int(line.get_int("ranks", 1, 1 << 20)) : 0;
  if (line.has("ranks") && !line.has("dry-run") && !line.has("explain-memory"))
    throw InputError({.where = "command line",
                      .what = "--ranks is for --dry-run and --explain-memory",
                      .hint = "mpirun -np N to start N ranks"});
  if (line.has("slow-share") && !line.has("preflight"))
    throw InputError({.where = "command line", .what = "--slow-share is for --preflight"});
  if (line.has("print-config")) {
    if (comm.rank() == 0) std::fputs(config::to_yaml(config).c_str(), stdout);
    config::check_stdout();
    if (comm.rank() == 0) try {
        config::validate_without_data(config);
      } catch (const InputError& error) {  // what is asked for is to see the config
        log::warn("a run would refuse this config: {}", error.what());
      }
    return kExitDone;
  }
  const std::string out = run_folder(line);
  if (line.has("explain-memory")) {
    const std::string picture = line.get("explain-memory");
    if (comm.rank() == 0 && !picture.empty()) files::check_output_file(picture);
    const plan::RunPlan run = plan::plan_dry_run(config, ranks, comm).plan;
    if (comm.rank() == 0) explain_memory(run, picture);
    config::check_stdout();
    plan::check_tiers(run, out);
    return kExitDone;
  }
  if (line.has("preflight")) {
    train::PreflightOptions preflight{.json = line.get("preflight")};
    if (line.has("slow-share")) preflight.slow_share = line.get_double("slow-share", 0, 1);
    if (comm.rank() == 0 && !preflight.json.empty()) files::check_output_file(preflight.json);
    return train::run_preflight(config, out, comm, preflight) ? kExitDone : kExitFailed;
  }
  train::TrainOptions options;
  const std::string resume = line.has("resume") ? line.get_path("resume") : "";
  options.resume_auto = resume == "auto";
  if (!options.resume_auto) options.resume_from = resume;
  if (comm.rank() == 0 && !options.resume_from.empty() && std::filesystem::is_regular_file(resume))
    throw InputError({.where = "command line",
                      .what = "--resume: a file is no run",
                      .got = resume,
                      .expected = "auto, or the folder of a run or of a checkpoint",
                      .hint = "--set train.init_from=FILE, which starts a run from its weights"});
  if (comm.rank() == 0 && !options.resume_from.empty() && !std::filesystem::exists(resume))
    throw InputError({.where = "command line",
                      .what = "--resume: there is no such folder",
                      .got = resume,
                      .expected = "auto, or the folder of a run or of a checkpoint",
                      .hint = nearest_word(resume, {"auto"}).empty() ? "" : "--resume auto"});
  options.out = out;
  options.max_hours = line.has("maxh") ? line.get_double("maxh", 0, 1e6) : 0;
  if (line.has("maxh") && options.max_hours == 0)
    throw InputError({.where = "command line",
                      .what = "--maxh 0 leaves no time for a step",
                      .hint = "hours with a fraction, such as --maxh 0.5, or no --maxh for no limit"});
  options.start_s = kStart_s;
  options.strict = line.has("strict");
  if (line.has("trace")) options.trace = line.get("trace");
  if (comm.rank() == 0)
    for (const std::string& file : {options.trace.value_or(""), config.log.prometheus}) check_beside_run(file, out);
  if (line.has("dry-run")) {
    const plan::DryRun dry = plan::plan_dry_run(config, ranks, comm);
    const auto classes = dry.data ? dry.data->class_names() : std::vector<std::string>();
    const int64_t done = comm.rank() == 0 ? train::check_start(dry.plan.config, options, classes) : 0;
    plan::print_dry_run(config, dry, ranks, out, done, comm);
    return kExitDone;
  }
  return train::run_training(config, options, comm);
}

int write_report(int argc, char** argv) {
  config::CommandLine line("ditrain", kReport);
  if (!line.parse(argc, argv)) return kExitDone;
  const std::vector<std::string>& folders = line.positional();
  if (folders.empty())
    throw InputError({.where = "command line", .what = "no run folder is given", .hint = "ditrain report DIR"});
  const std::string out = line.has("out") ? line.get_path("out") : folders.front() + "/report.html";
  report::write_report(folders, out);
  std::printf("report: %s\n", out.c_str());
  return kExitDone;
}

int plan_cluster(int argc, char** argv) {
  config::CommandLine line("ditrain", kPlan);
  if (!line.parse(argc, argv)) return kExitDone;
  if (!line.has("config"))
    throw InputError({.where = "command line", .what = "--config FILE is missing", .hint = kFirstConfig});
  if (line.has("nodes") && !line.has("platform"))
    throw InputError({.where = "command line",
                      .what = "--nodes is for --platform: the network of this machine is not known",
                      .hint = "--platform platforms/ethernet_10g.yaml"});
  std::string arguments = "--config " + quoted_word(line.get("config"));
  for (const char* flag : {"recipe", "set"})
    for (const std::string& value : line.get_all(flag)) arguments += fmt::format(" --{} {}", flag, quoted_word(value));
  arguments += " --out " + quoted_word(default_out(line.get("config")));  // which batch jobs have to state
  const config::Config config = config::load_config(line.get("config"), line.get_all("set"), line.get_all("recipe"));
  config::validate_without_data(config);
  plan::PlannedMachine machine;
  if (line.has("platform")) {
    plan::ClusterDescription platform = plan::load_cluster(line.get_path("platform"));
    if (line.has("nodes")) platform = platform.with_nodes(line.get_int("nodes", 1, 1 << 20));
    machine = plan::machine_of(platform, config.train.precision);
  } else {
    machine = plan::measure_this_machine(config);
  }
  const plan::InputFacts facts = plan::open_inputs(config).facts;
  const plan::ClusterPlan plan = plan::plan_cluster(config, facts, machine);
  std::fputs(describe(plan, arguments).c_str(), stdout);
  if (line.has("all")) std::fputs(list_all(plan).c_str(), stdout);
  config::check_stdout();
  return kExitDone;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && argv[1] == kReport.name) {
    config::open_standard_streams();
    return config::run_program("ditrain report", [&] { return write_report(argc - 1, argv + 1); });
  }
  if (argc > 1 && argv[1] == kPlan.name) {
    config::open_standard_streams();
    return config::run_program("ditrain plan", [&] { return plan_cluster(argc - 1, argv + 1); });
  }
  return config::run_program("ditrain", [&] {
    platform::install_signal_flags();  // first: a signal while ranks meet and plan is kept for the first step
    return config::run_mpi_program("ditrain", argc, argv,
                                   [&](dist::Communicator& comm) { return body(argc, argv, comm); });
  });
}
