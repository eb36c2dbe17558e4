// ditbench: measures this machine with the code that trains.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/base/words.hpp"
#include "ditrain/bench/clusters.hpp"
#include "ditrain/bench/comm.hpp"
#include "ditrain/bench/conv.hpp"
#include "ditrain/bench/data.hpp"
#include "ditrain/bench/gemm.hpp"
#include "ditrain/bench/ladder.hpp"
#include "ditrain/bench/memory.hpp"
#include "ditrain/bench/memory_matrix.hpp"
#include "ditrain/bench/ops.hpp"
#include "ditrain/bench/overlap.hpp"
#include "ditrain/bench/paper.hpp"
#include "ditrain/bench/quality.hpp"
#include "ditrain/bench/sample.hpp"
#include "ditrain/bench/scale.hpp"
#include "ditrain/bench/step.hpp"
#include "ditrain/bench/strategies.hpp"
#include "ditrain/bench/tune.hpp"
#include "ditrain/config/command_line.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/config/program.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/kernels/dispatch.hpp"
#include "ditrain/plan/kernel_settings.hpp"
#include "ditrain/platform/cpu.hpp"
#include "ditrain/platform/signals.hpp"

using namespace ditrain;

namespace {

config::CommandLine make_command_line(const std::vector<config::Command>& benches) {
  return config::CommandLine(config::Usage{
      "ditbench",
      "measure this machine with the code that trains, beside the peaks of the same cores",
      {{"model", "M",
        "S, B, L, XL or a full name, DiT-S/2 ... (default: gemm, ladder, scale all four; ops, tune XL; step, sample, "
        "data, clusters, memory, strategies S); scale: several"},
       {"batch", "N,...",
        "images; step, sample: one row each (default: gemm the usual one of each model, step, sample, data, "
        "inception 8, ladder 2, clusters, strategies 16, scale 28 per die)"},
       {"threads", "T", "worker threads (default: all cores this process may use)"},
       {"clusters", "C",
        "thread clusters (default: one per NUMA domain, or one per L3 cache of a single domain; clusters: one "
        "per thread if that gives one; strategies: as many as divide threads, heads, MLP columns and batch, if those "
        "do not)"},
       {"precision", "P,...", "f32 or bf16; gemm, ops, conv, vae, inception: also f32,bf16, in one report", "f32"},
       {"recompute", "MODE", "none, selective, block or auto, as train.recompute", "selective"},
       {"peers", "",
        "time OpenBLAS, BLIS and oneDNN in alternation, if this machine has them (gemm; conv, vae: oneDNN)"},
       {"kib", "N,...", "sizes of what is summed (comm; default: 64 to 131072)"},
       {"fast", "SHARE,...|none",
        "fast tiers to train in, as shares of what all tensors take; none: no training (memory; default: 0.4,0.25)"},
       {"matrix", "", "bandwidth and latency from each domain of cores to each memory node, nothing else (memory)"},
       {"repeats", "N", "timed repeats per row, after a first one that warms up", "5"},
       {"quick", "", "the shortest run that calls everything, to see that it works: its numbers mean nothing"},
       {"memory-gib", "X",
        "GiB that all ranks of a run may take together (strategies): a run that does not fit is a result"},
       {"set", "KEY=VALUE", "config key of the measured steps, as for ditrain; gemm and ops: kernels.*", "", true},
       {"config", "FILE", "the config that recipes change (quality)"},
       {"recipe", "FILE[:M]",
        "a YAML file whose keys replace those of --config, compared up to M minutes (quality; default: all)", "", true},
       {"against", "NAME,...", "recipes that all others are compared with (quality; default: --config itself)"},
       {"minutes", "M,...", "CPU minutes of training after which recipes are compared (quality)", "1,2,4"},
       {"equal-steps", "",
        "new recipes are not measured, and train for as many steps as --config: for recipes whose steps cost the same "
        "(quality)"},
       {"seeds", "N", "runs of each recipe (quality)", "3"},
       {"first-seed", "K", "seeds are K, K + 1, ... (quality)", "0"},
       {"samples", "N", "images that are drawn of each run (quality)", "1000"},
       {"only", "NAME,...", "table-2, table-3, table-4, operators, figure-9 ...: these experiments alone (paper)"},
       {"evaluations", "N", "of the model per image, those that guide included (quality)", "50"},
       {"platform", "FILE", "the cluster: a file of configs/platforms (scale, paper)"},
       {"nodes", "N,...", "nodes of it (scale; default: 1, 2, 4, ... as many as it has, up to 1024)"},
       {"global-batch", "N", "images of all nodes together, strong scaling (scale; default: --batch for each die)"},
       {"strategies", "S,...", "cftp, dp, dp_tp (scale)", "cftp"},
       {"ways", "W,...",
        "how gradients come together: two_level, ring, shards, reduce_scatter, outer, outer_overlapped (scale)",
        "two_level"},
       {"outer-every", "H", "steps between two outer steps (scale)", "50"},
       {"shares", "S,...", "of its peak that a die reaches (scale; default: the platform's)"},
       {"recording", "DIR", "the run whose steps give the compute times, with --batch images per rank (scale)"},
       {"jitter", "X", "sigma of the logarithm of a die's compute time, drawn anew in each step (scale)", "0"},
       {"slow", "N:FACTOR", "nodes that take so many times as long (scale)"},
       {"busy", "SHARE:TAKEN", "share of the links that others use, and the part of those that they take (scale)"},
       {"message-us", "X", "microseconds that a thread spends on each message, beside the wire (scale)", "0.5"},
       {"seed", "K", "draws jitter, slow nodes and busy links (scale)", "0"},
       {"rounds", "N", "of the n - 1 equal rounds of an exchange that are simulated; 0: every message (scale)", "4"},
       {"every-die", "", "dies of a node as actors that send each other messages, not as a formula (scale)"},
       {"out", "FILE|DIR",
        "where to write the tuning (tune; default: $DITRAIN_TUNING or ~/.config/ditrain/tuning.json); folder of runs, "
        "plots and grids, from which the same command goes on after it was ended (quality); folder of the page and its "
        "pictures (paper)"},
       {"json", "FILE", "write the rows as JSON too"}},
      "BENCH",
      "Benches:\n"
      "  gemm        every GEMM of the models on the whole team: share of the FMA peak; adaLN GEMMs beside a "
      "read loop over cold weights\n"
      "  ops         element-wise operators, AdamW+EMA and casts beside loops that move the same arrays; "
      "attention beside the FMA peak\n"
      "  conv        convolutions of the VAE and of Inception: share of the FMA peak, oneDNN beside them "
      "(--peers)\n"
      "  inception   features of images by the FID network: images/s, share of the FMA peak, memory\n"
      "  vae         images of 256 x 256 encoded and decoded by the VAE: images/s, share of the FMA peak, "
      "memory\n"
      "  step        whole training steps: images/s, share of the FMA peak, where the time goes, memory\n"
      "  sample      steps of a sampler with guidance: share of the FMA peak, where the time goes, memory\n"
      "  data        one loader thread on tiles and on JPEG files: images/s beside those of a training step, "
      "and what a step waits for its batch\n"
      "  clusters    steps of one core and of clusters of all, split by samples and by columns, in turns: "
      "efficiency, barriers\n"
      "  ladder      what each optimisation gives: steps with the reference GEMM and ours, fused, tuned (as "
      "the paper's Figure 9 and Table 3)\n"
      "  tune        search the cache blocks that make GEMMs fastest here; ditrain reads the file that this "
      "writes\n"
      "  comm        sums of gradients over ranks by size, flat (MPI) and hierarchical (memory of the node): "
      "mpirun -np 2 ditbench comm; with --model: whole steps without communication, with it, without overlap "
      "(--batch: images per rank; --set dist.simulate_link=...)\n"
      "  memory      bandwidth and latency of each tier; steps with memory.automem off, paper and planned in "
      "turn, in fast tiers of several sizes (--set memory.simulate_bulk=... for a slower bulk tier, --set "
      "memory.disk_gib=N for the disk); --matrix: each domain of cores x each memory node\n"
      "  strategies  the same cores as one process whose clusters share everything (cftp), as one process per "
      "cluster, each with a replica (dp), or as such processes that share one by tensor parallelism (dp_tp): "
      "seconds per step and memory of real runs in turn (the paper's Table 2); starts ditrain and mpirun "
      "itself\n"
      "  scale       training steps of a cluster that is not here, simulated message by message on SimGrid: weak and "
      "strong scaling, strategies, sum algorithms, jitter, slow nodes, busy links (the paper's Figures 10 and 11)\n"
      "  quality     recipes (YAML files over a config) trained in turn for equal CPU seconds, and how good "
      "their samples are, by measures that need no other weights; starts ditrain itself\n"
      "  paper       the tables and figures of the DiT-HC paper that concern the system, measured here and set "
      "beside its numbers; --out DIR: as a page with pictures\n",
      benches});
}

/// The words of a flag, separated by commas.
std::vector<std::string> words(const config::CommandLine& line, const std::string& flag) {
  return split(line.get(flag), ',');
}

[[noreturn]] void bad_value(const config::CommandLine& line, const std::string& flag, const char* expected) {
  refuse("command line", "--" + flag + ": bad value", "'" + line.get(flag) + "'", expected);
}

/// The numbers of a flag, from least to most, separated by commas.
template <class T>
std::vector<T> numbers(const config::CommandLine& line, const std::string& flag, T least, T most,
                       const char* expected) {
  std::vector<T> values;
  for (const std::string& word : words(line, flag)) {
    T value{};
    if (!parse_whole(word, value) || !(value >= least && value <= most)) bad_value(line, flag, expected);
    values.push_back(value);
  }
  return values;
}

std::vector<int64_t> integers(const config::CommandLine& line, const std::string& flag) {
  return numbers<int64_t>(line, flag, 1, 1 << 20, "integers from 1 to 1048576, separated by commas");
}

std::vector<DType> precisions(const config::CommandLine& line) {
  std::vector<DType> types;
  for (const std::string& name : words(line, "precision")) {
    const DType type = parse_word<DType>("command line", "--precision", name);
    if (std::find(types.begin(), types.end(), type) != types.end())
      refuse("command line", "--precision names " + name + " twice");
    types.push_back(type);
  }
  return types;
}

DType precision(const config::CommandLine& line) {
  const std::vector<DType> types = precisions(line);
  if (types.size() > 1)
    refuse("command line", "--precision: this bench measures one precision at a time",
           "'" + line.get("precision") + "'", alternatives(all_words<DType>()));
  return types.front();
}

/// Products and cache blocks as --set says.
void apply_kernels(const config::CommandLine& line, bench::Harness& harness) {
  config::Config config;
  for (const std::string& set : line.get_all("set")) config::apply_set(config, set);
  harness.apply(config);
  harness.note(harness.products());
}

void run_gemm(const config::CommandLine& line, bench::Harness& harness, dist::Communicator&) {
  apply_kernels(line, harness);
  const int64_t batch = line.has("batch") ? line.get_int("batch", 1, 1 << 20) : 0;
  bench::bench_gemm(
      harness,
      {.model = line.get("model"), .batch = batch, .precisions = precisions(line), .peers = line.has("peers")});
}

void run_ops(const config::CommandLine& line, bench::Harness& harness, dist::Communicator&) {
  apply_kernels(line, harness);
  bench::OpsBench ops{.precisions = precisions(line)};
  if (line.has("model")) ops.model = line.get("model");
  bench::bench_ops(harness, ops);
}

void run_conv(const config::CommandLine& line, bench::Harness& harness, dist::Communicator&) {
  apply_kernels(line, harness);
  bench::bench_conv(harness, {.precisions = precisions(line), .peers = line.has("peers")});
}

void run_inception(const config::CommandLine& line, bench::Harness& harness, dist::Communicator&) {
  apply_kernels(line, harness);
  bench::InceptionBench inception{.precisions = precisions(line)};
  if (line.has("quick")) inception.images = 1;
  if (line.has("batch")) inception.images = line.get_int("batch", 1, 1024);
  bench::bench_inception(harness, inception);
}

void run_vae(const config::CommandLine& line, bench::Harness& harness, dist::Communicator&) {
  apply_kernels(line, harness);
  bench::bench_vae(harness,
                   {.precisions = precisions(line), .side = line.has("quick") ? 32 : 256, .peers = line.has("peers")});
}

std::vector<std::string> sets_of(const config::CommandLine& line) {
  std::vector<std::string> sets = {"train.recompute=" + line.get("recompute")};
  for (const std::string& set : line.get_all("set")) sets.push_back(set);
  return sets;
}

template <class B>
void read_model_and_batch(const config::CommandLine& line, B& bench) {
  if (line.has("model")) bench.model = line.get("model");
  if (line.has("batch")) bench.batch = line.get_int("batch", 1, 1 << 20);
}

template <class B>
void read_model_and_batches(const config::CommandLine& line, B& bench) {
  if (line.has("model")) bench.model = line.get("model");
  if (line.has("batch")) bench.batches = integers(line, "batch");
}

void run_step(const config::CommandLine& line, bench::Harness& harness, dist::Communicator&) {
  bench::StepBench step{.precision = precision(line), .sets = sets_of(line)};
  read_model_and_batches(line, step);
  bench::bench_steps(harness, step);
}

void run_sample(const config::CommandLine& line, bench::Harness& harness, dist::Communicator&) {
  bench::SampleBench sample{.precision = precision(line), .sets = line.get_all("set")};
  read_model_and_batches(line, sample);
  bench::bench_sampling(harness, sample);
}

void run_data(const config::CommandLine& line, bench::Harness& harness, dist::Communicator&) {
  bench::DataBench data{.step = {.precision = precision(line), .sets = sets_of(line)}};
  if (line.has("model")) data.step.model = line.get("model");
  if (line.has("batch")) data.batch = line.get_int("batch", 1, 1 << 20);
  bench::bench_data(harness, data);
}

void run_clusters(const config::CommandLine& line, bench::Harness& harness, dist::Communicator&) {
  bench::ClustersBench clusters{.precision = precision(line), .sets = sets_of(line)};
  read_model_and_batch(line, clusters);
  bench::bench_clusters(harness, clusters);
}

void run_ladder(const config::CommandLine& line, bench::Harness& harness, dist::Communicator&) {
  bench::LadderBench ladder{.precision = precision(line), .sets = sets_of(line)};
  if (line.has("model")) ladder.models = {line.get("model")};
  if (line.has("batch")) ladder.batch = line.get_int("batch", 1, 1 << 20);
  bench::bench_ladder(harness, ladder);
}

void run_tune(const config::CommandLine& line, bench::Harness& harness, dist::Communicator&) {
  const bool automatic = !line.has("out");
  const std::string path = automatic ? plan::default_tuning_path() : line.get_path("out");
  if (path.empty())
    refuse("command line", "nowhere to write the tuning: neither HOME nor DITRAIN_TUNING is set", "", "", "--out FILE");
  if (const std::filesystem::path folder = std::filesystem::path(path).parent_path(); !folder.empty())
    files::make_output_folder(folder);
  files::check_output_file(path);
  bench::TuneBench tune;
  read_model_and_batch(line, tune);
  const kernels::GemmBlocking derived = plan::derived_blocking(harness.placement().topology);
  const kernels::GemmBlocking best = bench::bench_tune(harness, tune, derived);
  plan::write_tuning({platform::cpu_model_name(), kernels::chosen_isa(), derived, best}, path);
  harness.note("written to " + path + ": " +
               (automatic ? "ditrain takes it from there (kernels.tuned: auto)"
                          : "ditrain takes it with --set kernels.tuned=" + path));
}

/// Refuses flags that a bench reads in its other mode alone.
void refuse_flags(const config::CommandLine& line, const std::vector<std::string>& flags, const std::string& mode) {
  for (const std::string& flag : flags)
    if (line.has(flag)) refuse("command line", fmt::format("--{} does not go with {}", flag, mode));
}

void run_comm(const config::CommandLine& line, bench::Harness& harness, dist::Communicator& comm) {
  if (line.has("model")) {
    refuse_flags(line, {"kib"}, "comm --model, which measures whole steps");
    bench::OverlapBench overlap{.precision = precision(line), .sets = sets_of(line)};
    read_model_and_batch(line, overlap);
    return bench::bench_overlap(harness, comm, overlap);
  }
  refuse_flags(line, {"batch", "precision", "recompute", "set"}, "comm without --model, which has no steps");
  bench::CommBench bench;
  if (line.has("kib")) bench.kib = integers(line, "kib");
  bench::bench_comm(harness, comm, bench);
}

void run_strategies(const config::CommandLine& line, bench::Harness& harness, dist::Communicator&) {
  bench::StrategiesBench bench{.precision = precision(line), .sets = sets_of(line)};
  read_model_and_batch(line, bench);
  if (line.has("clusters")) bench.clusters = line.get_int("clusters", 1, 4096);
  if (line.has("memory-gib")) bench.memory_gib = line.get_double("memory-gib", 0.001, 1 << 20);
  bench::bench_strategies(harness, bench);
}

void run_memory(const config::CommandLine& line, bench::Harness& harness, dist::Communicator&) {
  if (line.has("matrix")) {
    refuse_flags(line, {"model", "batch", "precision", "recompute", "set", "fast"},
                 "--matrix, which measures no steps");
    return bench::bench_memory_matrix(harness, harness.placement().topology);
  }
  bench::MemoryBench bench{.precision = precision(line), .sets = sets_of(line), .once = line.has("quick")};
  read_model_and_batch(line, bench);
  if (line.has("fast"))
    bench.fast_shares = line.get("fast") == "none"
                            ? std::vector<double>()
                            : numbers<double>(line, "fast", std::numeric_limits<double>::min(), 1,
                                              "shares above 0 and up to 1, separated by commas, or none");
  bench::bench_memory(harness, bench);
}

// "FILE" or "FILE:MINUTES"; a file that has the whole name comes first.
bench::QualityRecipe recipe_of(const std::string& text) {
  const size_t colon = text.rfind(':');
  double minutes = 0;
  if (colon == std::string::npos || std::filesystem::exists(text)) return {text};
  if (!parse_whole(text.substr(colon + 1), minutes) || !(minutes > 0 && minutes < 1e6))
    refuse("command line", "--recipe: no minutes behind the colon", "'" + text + "'", "a file, or FILE:12");
  return {text.substr(0, colon), minutes};
}

void run_quality(const config::CommandLine& line, bench::Harness& harness, dist::Communicator& comm) {
  line.need({"config", "out"});
  if (comm.world_size() > 1) refuse("ditbench", "quality starts ditrain itself", "several ranks");
  for (const auto& [flag, key] :
       {std::pair{"precision", "train.precision"}, {"model", "model.name"}, {"batch", "train.global_batch"}})
    if (line.has(flag))
      refuse("command line", fmt::format("quality takes what the config says, not --{}", flag), "", "",
             fmt::format("--set {}={}", key, line.get(flag)));
  bench::QualityBench quality{.config = line.get("config"),
                              .recipes = {},
                              .against = {},
                              .sets = line.get_all("set"),
                              .minutes = numbers<double>(line, "minutes", 1e-3, 1e6, "rising minutes, as 1,2,4"),
                              .seeds = line.get_int("seeds", 1, 1000),
                              .first_seed = line.get_int("first-seed", 0, 1 << 30),
                              .samples = line.get_int("samples", 2, 1 << 20),
                              .evaluations = line.get_int("evaluations", 1, 10000),
                              .out = line.get_path("out"),
                              .equal_steps = line.has("equal-steps"),
                              .quick = line.has("quick")};
  if (line.has("against")) quality.against = words(line, "against");
  for (const std::string& recipe : line.get_all("recipe")) quality.recipes.push_back(recipe_of(recipe));
  if (!std::is_sorted(quality.minutes.begin(), quality.minutes.end(), std::less_equal<>()))
    refuse("command line", "--minutes do not rise", "'" + line.get("minutes") + "'", "such as 1,2,4");
  if (quality.quick) quality.seeds = 1, quality.samples = 16, quality.evaluations = 4;
  bench::bench_quality(harness, quality);
}

void run_paper(const config::CommandLine& line, bench::Harness& harness, dist::Communicator& comm) {
  if (comm.world_size() > 1) refuse("ditbench", "paper starts ranks itself", "several ranks");
  if (precision(line) != DType::kF32) refuse("command line", "--precision: the paper's numbers are f32", "'bf16'");
  bench::PaperBench paper{.sets = sets_of(line)};
  if (line.has("only")) paper.only = words(line, "only");
  read_model_and_batch(line, paper);
  if (line.has("platform")) paper.platform = line.get("platform");
  if (line.has("out")) paper.out = line.get_path("out");
  bench::bench_paper(harness, paper);
}

template <class E>
std::vector<E> choices(const config::CommandLine& line, const std::string& flag) {
  std::vector<E> values;
  for (const std::string& word : words(line, flag)) values.push_back(parse_word<E>("command line", "--" + flag, word));
  return values;
}
/// The two numbers of "A:B".
std::pair<double, double> pair_of(const config::CommandLine& line, const std::string& flag, double most_first,
                                  double most_second, const char* expected) {
  const std::vector<std::string> parts = split(line.get(flag), ':');
  double first = -1, second = -1;
  if (parts.size() != 2 || !parse_whole(parts[0], first) || !parse_whole(parts[1], second) ||
      !(first >= 0 && first <= most_first && second >= 0 && second <= most_second))
    bad_value(line, flag, expected);
  return {first, second};
}

void run_scale(const config::CommandLine& line, bench::Harness& harness, dist::Communicator& comm) {
  line.need({"platform"});
  if (comm.world_size() > 1) refuse("ditbench", "scale simulates ranks", "several real ones");
  bench::ScaleBench scale{
      .platform = line.get("platform"),
      .strategies = choices<config::Strategy>(line, "strategies"),
      .algorithms = choices<bench::SumAlgorithm>(line, "ways"),
      .precision = precision(line),
      .sets = line.has("recording") && !line.has("recompute") ? line.get_all("set") : sets_of(line)};
  if (line.has("nodes")) scale.nodes = integers(line, "nodes");
  if (line.has("model")) scale.models = words(line, "model");
  if (line.has("batch")) scale.batch = line.get_int("batch", 1, 1 << 20);
  if (line.has("global-batch")) scale.global_batch = line.get_int("global-batch", 1, 1 << 30);
  if (line.has("shares"))
    scale.shares = numbers<double>(line, "shares", 0.001, 1, "shares above 0 and up to 1, separated by commas");
  if (line.has("recording")) {
    scale.recording = line.get_path("recording");
    for (const char* flag : {"global-batch", "shares", "strategies", "precision"})
      if (line.has(flag))
        refuse("command line", fmt::format("--{} does not go with --recording, whose steps had their own", flag));
    if (!line.has("batch"))
      refuse("command line", "--recording needs --batch, the images per rank that it had", "", "",
             "train.global_batch of its config.yaml, divided by its ranks");
  }
  bench::SimulationOptions& o = scale.simulation;
  o.outer_every = line.get_int("outer-every", 1, 100000);
  o.jitter = line.get_double("jitter", 0, 1);
  o.message_us = line.get_double("message-us", 0, 1e6);
  if (line.has("slow")) {
    const auto [nodes, factor] = pair_of(line, "slow", 1 << 20, 1000, "nodes and a factor, as 1:1.5");
    o.slow_nodes = int64_t(nodes), o.slow_factor = factor;
  }
  if (line.has("busy"))
    std::tie(o.busy_links, o.busy_share) =
        pair_of(line, "busy", 1, 0.99, "two shares, as 0.1:0.5; at most 0.99 of a link is taken");
  o.seed = line.get_int("seed", 0, 1 << 30);
  o.rounds = int(line.get_int("rounds", 0, 1 << 20));
  o.every_die = line.has("every-die");
  if (line.has("quick")) scale.nodes = {1, 2};
  bench::bench_scale(harness, scale);
}

struct Bench {
  const char* name;
  void (*run)(const config::CommandLine&, bench::Harness&, dist::Communicator&);
  std::string_view flags;  // that it reads, beside those of all
};
constexpr std::string_view kFlagsOfSteps = "model batch precision recompute set";
constexpr Bench kBenches[] = {
    {"gemm", run_gemm, "model batch precision peers set"},
    {"ops", run_ops, "model precision set"},
    {"step", run_step, kFlagsOfSteps},
    {"clusters", run_clusters, kFlagsOfSteps},
    {"ladder", run_ladder, kFlagsOfSteps},
    {"tune", run_tune, "model batch out"},
    {"comm", run_comm, "model batch precision recompute set kib"},
    {"strategies", run_strategies, "model batch precision recompute set memory-gib"},
    {"memory", run_memory, "model batch precision recompute set matrix fast"},
    {"conv", run_conv, "precision peers set"},
    {"vae", run_vae, "precision peers set"},
    {"inception", run_inception, "batch precision set"},
    {"sample", run_sample, "model batch precision set"},
    {"data", run_data, kFlagsOfSteps},
    {"quality", run_quality,
     "model batch precision set config recipe against minutes equal-steps seeds first-seed samples evaluations out"},
    {"scale", run_scale,
     "model batch precision recompute set platform nodes global-batch strategies ways outer-every shares recording "
     "jitter slow busy message-us seed rounds every-die"},
    {"paper", run_paper, "model batch precision recompute set only platform out"}};

/// A flag that another bench would read is refused: hours are not spent on measuring something else.
void check_flags(const config::CommandLine& line, const Bench& bench) {
  const std::vector<std::string> own = split(bench.flags, ' ');
  for (const Bench& other : kBenches)
    for (const std::string& flag : split(other.flags, ' '))
      if (line.has(flag) && std::find(own.begin(), own.end(), flag) == own.end())
        refuse("command line", fmt::format("--{} is not a flag of ditbench {}", flag, bench.name), "",
               fmt::format("of --{} and the flags of all: --threads, --clusters, --repeats, --quick, --json",
                           fmt::join(own, ", --")));
}

std::vector<config::Command> benches() {
  std::vector<config::Command> all;
  for (const Bench& b : kBenches) all.push_back({.name = b.name});
  return all;
}

const Bench& wanted_bench(const config::CommandLine& line) {
  std::vector<std::string> names;
  for (const Bench& b : kBenches) {
    if (line.positional() == std::vector<std::string>{b.name}) return b;
    names.push_back(b.name);
  }
  const std::string got = line.positional().empty() ? "nothing" : line.positional().front();
  const std::string near = nearest_word(got, names);
  refuse("command line", line.positional().size() > 1 ? "one bench at a time" : "what to measure", got,
         fmt::format("one of {}", fmt::join(names, ", ")), near.empty() ? "ditbench --help" : near);
}

/// What was measured, in the table and in the file of --json.
void tell(const config::CommandLine& line, const bench::Report& report) {
  std::fputs(describe(report).c_str(), stdout);
  if (line.has("json")) files::write_file_atomically(line.get("json"), to_json(report));
}

/// Runs the bench. The rows that it had before an error, or before a signal, are told.
void run_and_tell(const config::CommandLine& line, const Bench& wanted, bench::Harness& harness,
                  dist::Communicator& comm) {
  const bool leader = comm.rank() == 0;
  try {
    wanted.run(line, harness, comm);
  } catch (const std::exception& error) {
    if (leader && !harness.rows().empty()) {
      harness.note(std::string("not complete: ") + error.what());
      try {
        tell(line, harness.report_so_far());
        std::fflush(stdout);
      } catch (const std::exception& second) {  // the first error is the one to say last
        std::fprintf(stderr, "ditbench: %s\n", second.what());
      }
    }
    throw;
  }
  if (leader) tell(line, harness.report());
}

/// Ranks but the first one stay silent: they measure with it.
int body(int argc, char** argv, dist::Communicator& comm) {
  config::CommandLine line = make_command_line(benches());
  if (!line.parse(argc, argv)) return kExitDone;
  const Bench& wanted = wanted_bench(line);
  check_flags(line, wanted);
  const bool leader = comm.rank() == 0;
  if (line.has("json") && leader) files::check_output_file(line.get_path("json"));
  platform::install_signal_flags();
  kernels::chosen_isa();  // a bad DITRAIN_ISA before anything is measured
  bench::Effort effort = line.has("quick") ? bench::Effort::quick() : bench::Effort{};
  if (line.has("repeats") || !line.has("quick")) effort.repeats = line.get_int("repeats", 1, 1000);
  const int64_t threads = line.has("threads") ? line.get_int("threads", 1, 4096) : 0;
  std::optional<bench::Harness> made;
  made.emplace(threads, effort, line.has("clusters") ? line.get_int("clusters", 1, 4096) : 0, &comm);
  if (wanted.run == run_clusters && !line.has("clusters") && made->placement().clusters == 1) {
    const int64_t of_one = made->num_threads();
    made.reset();  // it holds this thread on its first core
    made.emplace(threads, effort, of_one, &comm);
  }
  bench::Harness& harness = *made;
  harness.note(fmt::format("{} cluster(s) of threads ({})", harness.placement().clusters,
                           harness.placement().plan.clusters_from));
  if (line.has("quick")) harness.note("--quick: everything was called, but times and shares mean nothing");
  if (leader) std::fputs(kernels::dispatch_report().c_str(), stdout);
  std::fflush(stdout);
  if (leader)
    harness.on_row = [](const bench::Row& row) {
      if (!(row.time.median_s > 0)) return;  // rows that time nothing
      std::fprintf(stderr, "%s: %.4g s", row.name.c_str(), row.time.median_s);
      if (std::isfinite(row.share)) std::fprintf(stderr, ", share %.1f %%", 100 * row.share);
      std::fputc('\n', stderr);
    };
  run_and_tell(line, wanted, harness, comm);
  if (!leader) return kExitDone;
  config::check_stdout();
  harness.check_shares();  // last: hours of rows are not lost over one of them
  return kExitDone;
}

}  // namespace

int main(int argc, char** argv) {
  return config::run_mpi_program("ditbench", argc, argv,
                                 [&](dist::Communicator& comm) { return body(argc, argv, comm); });
}
