#include "ditrain/bench/strategies.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "child.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/bench/step.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/plan/rank_groups.hpp"
#include "ditrain/platform/affinity.hpp"
#include "own_keys.hpp"
#include "stop.hpp"
#include "turns.hpp"

namespace ditrain::bench {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 4;        // of a timed run; the first one touches memory for the first time
constexpr int64_t kMemorySteps = 2;  // after one step everything has been touched
constexpr useconds_t kLook_us = 100000;

struct Step {
  double seconds = 0, exposed_s = 0;
};

// The whole lines of metrics.jsonl so far.
std::vector<Step> read_steps(const std::string& out, int64_t batch) {
  std::ifstream in(out + "/metrics.jsonl");
  std::vector<Step> steps;
  for (std::string line; std::getline(in, line);) {
    const auto j = files::parse_json_or_discard(line);
    if (!j.is_object()) break;
    try {
      steps.push_back({double(batch) / j.at("images_per_second").get<double>(),
                       j.at("seconds").at("allreduce_exposed").get<double>()});
    } catch (const nlohmann::json::exception& e) {
      throw RunError({.where = out + "/metrics.jsonl",
                      .what = "not the metrics that this ditbench reads: " + files::json_problem(e),
                      .hint = "ditrain and ditbench of one build"});
    }
  }
  return steps;
}

/// One of the three, and what its runs gave so far.
struct Runs {
  config::Strategy strategy;
  int ranks = 1;
  std::vector<double> seconds = {}, exposed_s = {};
  int64_t peak_bytes = 0;
  bool fits = true;

  std::string name() const { return std::string(word_of(strategy)); }
  double median_s() const { return quantile(seconds, 0.5); }
};

class StrategiesMeter {
 public:
  StrategiesMeter(Harness& harness, const StrategiesBench& bench);
  void measure();

 private:
  std::vector<Runs> contenders() const {
    using config::Strategy;
    return {{Strategy::kCftp, 1}, {Strategy::kDp, clusters_}, {Strategy::kDpTp, clusters_}};
  }
  std::string config_file(const Runs& c);
  std::vector<std::string> command(const Runs& c, const std::string& out);
  void run(Runs& c, int64_t steps, bool for_memory);
  void look_at_memory(const Child& child, Runs& c) const;
  void handle_early_end(const Child& child, const MemoryCap& cap, Runs& c) const;
  Row row(const Runs& c) const;
  void compare(const Runs& ours, const Runs& theirs);

  Harness& harness_;
  const StrategiesBench bench_;
  const config::Config config_;  // of all runs, but for section parallel
  int threads_, clusters_;
  std::string ditrain_, mpirun_;
  const AffinityScope all_cores_;  // for children, which inherit the mask of this thread
  TemporaryFolder folder_;
  int runs_ = 0;
};

// The run is ended from outside, before it would write a checkpoint.
config::Config config_of_runs(const StrategiesBench& bench) {
  expect_not_set(bench.sets, {{"parallel.threads", "--threads"},
                              {"parallel.clusters", "--clusters"},
                              {"parallel.strategy", "without it: all three are measured"},
                              {"train.global_batch", "--batch"},
                              {"train.precision", "--precision"}});
  config::Config config;
  config.model.name = model_name(bench.model);
  config.model.in_channels = 3, config.model.num_classes = 8;  // of the drawn images
  config.train.global_batch = bench.batch;
  config.train.steps = int64_t{1} << 30;
  config.checkpoint.every_steps = 0, config.checkpoint.async = false, config.log.every_steps = 1;
  config.train.precision = bench.precision;
  for (const std::string& set : bench.sets) config::apply_set(config, set);
  nn::apply_name(config.model);
  return config;
}

ThreadsInClusters threads_in_clusters(Harness& harness, const StrategiesBench& bench, const config::Config& config) {
  const int all = harness.num_threads();
  if (bench.clusters > 0) return {all, int(bench.clusters)};
  const ThreadsInClusters cut = clusters_that_divide(all, harness.placement().clusters, config);
  harness.note(
      fmt::format("{} cluster(s) on {} of {} thread(s), which divide threads, {} heads, {} MLP columns and a "
                  "batch of {} (--clusters){}",
                  cut.clusters, cut.threads, all, config.model.num_heads, config.model.mlp_size(), bench.batch,
                  cut.clusters > 1 ? "" : "; with one all strategies are the same"));
  return cut;
}

StrategiesMeter::StrategiesMeter(Harness& harness, const StrategiesBench& bench)
    : harness_(harness),
      bench_(bench),
      config_(config_of_runs(bench)),
      threads_(harness.num_threads()),
      clusters_(1),
      ditrain_(program_beside("ditrain", "strategies")),
      mpirun_(find_in_path("mpirun")),
      all_cores_(harness.placement().topology.allowed_pus) {
  const ThreadsInClusters cut = threads_in_clusters(harness, bench, config_);
  threads_ = cut.threads, clusters_ = cut.clusters;
  if (clusters_ > threads_)
    refuse("ditbench", "more clusters than threads", fmt::format("{} and {}", clusters_, threads_));
  if (mpirun_.empty())
    refuse("ditbench", "strategies starts ranks, and there is no mpirun in $PATH", "", "", "the package openmpi-bin");
  if (threads_ % clusters_ != 0)
    refuse("ditbench", "threads that do not divide over the clusters: ranks would get fewer",
           fmt::format("{} and {}", threads_, clusters_));
  for (const Runs& c : contenders()) config_file(c);  // what cannot run is refused before anything does
}

// The config of a strategy, on all cores whatever the number of ranks. Returns its path.
std::string StrategiesMeter::config_file(const Runs& c) {
  config::Config config = config_;
  config.parallel.strategy = c.strategy;
  config.parallel.threads = threads_ / c.ranks;
  config.parallel.clusters = c.ranks == 1 ? clusters_ : 1;
  config::validate(config);
  plan::settle(config, {}, {c.ranks, c.ranks});
  const std::string path = fmt::format("{}/{}.yaml", folder_.path(), c.strategy);
  std::ofstream(path) << config::to_yaml(config);
  return path;
}

// Ranks see all cores and share them out between them, as their start reports tell.
std::vector<std::string> StrategiesMeter::command(const Runs& c, const std::string& out) {
  std::vector<std::string> words = {ditrain_, "--config", config_file(c), "--out", out};
  if (c.strategy == config::Strategy::kCftp) return words;
  const std::vector<std::string> launcher = {mpirun_,           "-np",       std::to_string(c.ranks),
                                             "--oversubscribe", "--bind-to", "none"};
  words.insert(words.begin(), launcher.begin(), launcher.end());
  return words;
}

void StrategiesMeter::look_at_memory(const Child& child, Runs& c) const {
  int64_t sum = 0, shared = 0;
  for (const pid_t pid : child.processes())
    if (program_of(pid) == fs::canonical(ditrain_))
      sum += pss_bytes(pid), shared = std::max(shared, shared_huge_bytes(pid));
  c.peak_bytes = std::max(c.peak_bytes, sum + shared);
}

// A run that ended before it was told to: it did not fit, or something is wrong.
void StrategiesMeter::handle_early_end(const Child& child, const MemoryCap& cap, Runs& c) const {
  const std::string said = child.said();
  if (said.find("[memory]") != said.npos || cap.kills() > 0) {
    c.fits = false;
    return;
  }
  child.fail(fmt::format("the run of {}", c.strategy));
}

void StrategiesMeter::run(Runs& c, int64_t steps, bool for_memory) {
  const std::string out = fmt::format("{}/run{}", folder_.path(), ++runs_);
  const MemoryCap cap(size_t(bench_.memory_gib * 0x1p30), c.ranks);
  if (runs_ == 1 && cap.limited()) harness_.note(cap.description());
  Child::Options options{.output = out + ".log", .environment = environment_of_mpirun(), .cap = &cap};
  // Ranks that end the run are gone already: Open MPI's mpirun would wait for them twice for a second.
  options.environment.emplace_back("OMPI_MCA_odls_base_sigkill_timeout=0");
  options.environment.push_back("TMPDIR=" + folder_.path());
  Child child(command(c, out), options);
  std::vector<Step> done;
  while (int64_t(done.size()) < steps) {
    usleep(kLook_us);
    check_stop();
    if (for_memory) look_at_memory(child, c);
    done = read_steps(out, bench_.batch);
    if (int64_t(done.size()) < steps && !child.running()) return handle_early_end(child, cap, c);
  }
  child.end();
  for (int64_t i = 1; i < steps && !for_memory; ++i) {
    c.seconds.push_back(done[size_t(i)].seconds);
    c.exposed_s.push_back(done[size_t(i)].exposed_s);
  }
  fs::remove_all(out);
}

Row StrategiesMeter::row(const Runs& c) const {
  Row row = timed_row(fmt::format("strategies {} {}", model_name(bench_.model), c.strategy),
                      dtype_name(bench_.precision), c.seconds);
  row.details = {{"strategy", c.name(), false},
                 {"ranks", int64_t(c.ranks)},
                 {"clusters", int64_t(clusters_)},
                 {"batch", bench_.batch},
                 {"images_per_second", double(bench_.batch) / c.median_s()},
                 {"allreduce_exposed_s", quantile(c.exposed_s, 0.5)},
                 {"peak_bytes", c.fits ? double(c.peak_bytes) : std::numeric_limits<double>::quiet_NaN()},
                 {"result", std::string(c.fits ? "ok" : "out of memory")}};
  return row;
}

void StrategiesMeter::compare(const Runs& ours, const Runs& theirs) {
  std::string line = "cftp / " + theirs.name() + ": ";
  if (!ours.fits || !theirs.fits)
    line += (ours.fits ? theirs.name() : "cftp") + " is out of memory";
  else
    line += fmt::format("{:.3f} x the images/s, {:.3f} x the memory", theirs.median_s() / ours.median_s(),
                        double(ours.peak_bytes) / double(theirs.peak_bytes));
  harness_.note(line);
}

void StrategiesMeter::measure() {
  std::vector<Runs> contenders = this->contenders();
  for (Runs& c : contenders) run(c, kMemorySteps, true);
  for (int64_t repeat = 0; repeat < harness_.effort().repeats; ++repeat)
    for (Runs& c : contenders)
      if (c.fits) run(c, kSteps, false);
  for (const Runs& c : contenders) {
    Row row = this->row(c);
    for (const Runs& other : contenders)
      if (&c == &contenders[0] && &other != &c && c.fits && other.fits)
        row.peers.emplace_back(other.name(), other.median_s() / c.median_s());
    harness_.add(std::move(row));
  }
  for (size_t i = 1; i < contenders.size(); ++i) compare(contenders[0], contenders[i]);
}

}  // namespace

ThreadsInClusters clusters_that_divide(int threads, int natural, const config::Config& config) {
  const int64_t of_model =
      std::gcd(std::gcd(config.model.num_heads, config.model.mlp_size()), config.train.global_batch);
  const auto divides = [&](int most, int of_threads) {
    return int(std::gcd(int64_t(std::gcd(most, of_threads)), of_model));
  };
  if (const int clusters = divides(natural, threads); clusters > 1) return {threads, clusters};
  if (const int clusters = divides(threads, threads); clusters > 1 || threads == 1) return {threads, clusters};
  if (const int clusters = divides(threads - 1, threads - 1); clusters > 1) return {threads - 1, clusters};
  return {threads, 1};
}

void bench_strategies(Harness& harness, const StrategiesBench& bench) {
  if (!dist::mpi_launcher().empty())
    refuse("ditbench", "strategies starts ranks itself", "a run under " + dist::mpi_launcher(), "",
           "ditbench strategies without a launcher");
  StrategiesMeter(harness, bench).measure();
}

}  // namespace ditrain::bench
