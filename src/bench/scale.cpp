#include "ditrain/bench/scale.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cluster_simulation.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/bench/step.hpp"
#include "ditrain/config/option_table.hpp"
#include "own_keys.hpp"
#include "step_schedule.hpp"
#include "stop.hpp"

namespace ditrain::bench {
namespace {

constexpr int64_t kMostDoubled = 1024;  // nodes of a row without --nodes
constexpr double kMatters = 0.01;       // of a step: less does not limit it

std::vector<int64_t> doubling(int64_t nodes) {
  std::vector<int64_t> all;
  for (int64_t n = 1; n <= std::min(nodes, kMostDoubled); n *= 2) all.push_back(n);
  return all;
}

// What a row varies.
struct Point {
  std::string model;
  double share = 0;
  config::Strategy strategy = config::Strategy::kCftp;
  SumAlgorithm algorithm = SumAlgorithm::kTwoLevel;
  int64_t nodes = 1;
};

class ScaleMeter {
 public:
  ScaleMeter(Harness& harness, const ScaleBench& bench)
      : harness_(harness), bench_(bench), platform_(plan::load_cluster(bench.platform)) {
    if (bench_.nodes.empty()) bench_.nodes = doubling(platform_.nodes);
    if (bench_.shares.empty()) bench_.shares = {platform_.die.share};
    if (!bench_.recording.empty())
      use_recording();
    else
      expect_not_set(bench_.sets, {{"parallel.threads", "--platform: a rank has the cores of its dies"},
                                   {"parallel.clusters", "--platform: a rank has the cores of its dies"}});
    if (bench_.models.empty()) bench_.models = {"S", "B", "L", "XL"};
    for (const int64_t nodes : bench_.nodes) platform_.with_nodes(nodes);  // refused before anything runs
    for (const SumAlgorithm algorithm : bench_.algorithms)
      if (const int64_t most = *std::max_element(bench_.nodes.begin(), bench_.nodes.end());
          algorithm == SumAlgorithm::kRing && most > kMostRingNodes)
        refuse("ditbench", "a ring over all ranks has too many dependent messages to simulate",
               fmt::format("{} nodes", most), fmt::format("at most {}", kMostRingNodes),
               "--ways two_level, which is what the engine does");
  }

  void measure() {
    const std::vector<Point> points = this->points();
    for (const Point& p : points) prepare(p);  // what cannot run is refused before anything is simulated
    describe_run();
    for (const Point& p : points) {
      check_stop();
      if (p.nodes == bench_.nodes.front()) first_rate_ = 0;  // of a new series
      measure(p);
    }
  }

 private:
  // A recording has a config of its own, and times for the images per rank that it had.
  void use_recording() {
    recording_ = read_recording(bench_.recording);
    const config::Config& recorded = recording_->config;
    for (const SumAlgorithm algorithm : bench_.algorithms)
      if ((algorithm == SumAlgorithm::kShards || algorithm == SumAlgorithm::kReduceScatter) !=
          recorded.dist.shard_optimizer)
        refuse("ditbench",
               fmt::format("--recording: {} updates another part of the weights than --ways {}", bench_.recording,
                           algorithm),
               fmt::format("dist.shard_optimizer: {}", recorded.dist.shard_optimizer),
               recorded.dist.shard_optimizer ? "--ways shards or reduce_scatter" : "--ways without shards");
    if (recorded.train.global_batch % bench_.batch != 0)
      refuse("ditbench", "--batch is not what a rank of the recording had",
             fmt::format("{} of train.global_batch {}", bench_.batch, recorded.train.global_batch),
             fmt::format("{} divided by its ranks", recorded.train.global_batch));
    config::Config wanted = recorded;
    for (const std::string& set : bench_.sets) config::apply_set(wanted, set);
    nn::apply_name(wanted.model);
    if (!bench_.models.empty()) wanted.model.name = model_name(bench_.models.front());
    expect_same_work(*recording_, wanted, bench_.recording);
    bench_.models = {recorded.model.name};
    bench_.strategies = {recorded.parallel.strategy};
    bench_.shares = {std::numeric_limits<double>::quiet_NaN()};
  }

  int64_t dies(const Point& p) const { return p.nodes * platform_.dies_per_node; }

  config::Config config_of(const Point& p) const {
    StepBench step{.model = p.model, .precision = bench_.precision, .sets = bench_.sets};
    if (!recording_)
      expect_not_set(bench_.sets, {{"parallel.strategy", "--strategies"}, {"dist.shard_optimizer", "--ways"}});
    const bool shards = p.algorithm == SumAlgorithm::kShards || p.algorithm == SumAlgorithm::kReduceScatter;
    const std::string keep = shards ? "true" : "false";
    step.sets.push_back("dist.shard_optimizer=" + keep);
    step.sets.push_back(fmt::format("parallel.strategy={}", p.strategy));
    const int64_t batch = bench_.global_batch > 0 ? bench_.global_batch : bench_.batch * dies(p);
    if (!recording_) return step_config(step, batch);
    config::Config config = recording_->config;
    for (const std::string& set : bench_.sets) config::apply_set(config, set);
    const bool whole_nodes = config.parallel.strategy == config::Strategy::kCftp;
    config.train.global_batch = bench_.batch * (whole_nodes ? p.nodes : dies(p));
    if (config.dist.outer)
      refuse("ditbench", "scale does not read dist.outer", "", "",
             "--ways outer or outer_overlapped, --outer-every N, and dist.outer: off");
    return config;
  }

  std::vector<Point> points() const {
    std::vector<Point> all;
    for (const std::string& model : bench_.models)
      for (const double share : bench_.shares)
        for (const config::Strategy strategy : bench_.strategies)
          for (const SumAlgorithm algorithm : bench_.algorithms)
            for (const int64_t nodes : bench_.nodes) all.push_back({model, share, strategy, algorithm, nodes});
    return all;
  }

  struct Prepared {
    plan::ClusterDescription cluster;
    plan::RunPlan plan;
    StepSchedule schedule;
  };
  Prepared prepare(const Point& p) const {
    plan::ClusterDescription cluster = platform_.with_nodes(p.nodes);
    if (!recording_) cluster.die.share = p.share;
    plan::RunPlan plan = plan_on_cluster(config_of(p), cluster);
    const ComputeTimes times = recording_ ? recording_->times : expected_times(plan, cluster);
    StepSchedule schedule = schedule_of(plan, times, cluster, p.algorithm);
    return {std::move(cluster), std::move(plan), std::move(schedule)};
  }

  void measure(const Point& p) {
    const Prepared prepared = prepare(p);
    SimulationOptions options = bench_.simulation;
    options.algorithm = p.algorithm;
    harness_.add(row_of(p, prepared.plan, prepared.schedule, simulate(prepared.cluster, prepared.schedule, options)));
  }

  Row row_of(const Point& p, const plan::RunPlan& plan, const StepSchedule& schedule, const SimulatedStep& step) {
    const double rate = double(plan.config.train.global_batch) / step.step_s / double(p.nodes);
    if (first_rate_ == 0) first_rate_ = rate;
    Row row{.name = fmt::format("scale {} {} {} {}", plan.config.model.name, p.strategy, p.algorithm, p.nodes),
            .dtype = dtype_name(plan.config.train.precision),
            .time = {.median_s = step.step_s, .min_s = step.step_s, .p90_s = step.step_s},
            .share = std::numeric_limits<double>::quiet_NaN()};
    row.details = {{"model", plan.config.model.name, false},
                   {"strategy", std::string(word_of(p.strategy)), false},
                   {"way", std::string(word_of(p.algorithm)), false},
                   {"nodes", p.nodes, false},
                   {"dies", dies(p)},
                   {"ranks", int64_t(plan.world_size), false},
                   {"batch", plan.config.train.global_batch},
                   {"share_of_peak", p.share, !recording_},
                   {"step_s", step.step_s},
                   {"images_per_second", rate * double(p.nodes)},
                   {"efficiency", rate / first_rate_},
                   {"compute_s", step.compute_s},
                   {"tensor_s", schedule.tensor_s, schedule.tensor_s > 0},
                   {"update_s", schedule.update_s()},
                   {"exposed_s", step.exposed_s},
                   {"slower_s", step.slower_s},
                   {"limits", limit_of(schedule, step)},
                   {"simulation_s", step.wall_s, false},
                   {"peak_rss_bytes", step.peak_bytes, false},
                   {"messages", step.messages, false}};
    return row;
  }

  static std::string limit_of(const StepSchedule& schedule, const SimulatedStep& step) {
    const std::pair<double, const char*> all[] = {{step.exposed_s, "messages"},
                                                  {step.slower_s, "slower ranks"},
                                                  {schedule.tensor_s, "tensor-parallel sums"},
                                                  {schedule.update_s(), "updates"}};
    const auto largest = std::max_element(std::begin(all), std::end(all));
    return largest->first < kMatters * step.step_s ? "compute" : largest->second;
  }

  void describe_run() {
    const SimulationOptions& o = bench_.simulation;
    const std::string cluster = plan::describe(platform_);
    harness_.note(cluster.substr(0, cluster.find_last_not_of('\n') + 1));
    harness_.note(fmt::format(
        "simulated, not measured: {}, {}; jitter {:g} per die and step, {} slow nodes (x {:g}), {:g} of the links with "
        "{:g} of their rate taken, {:g} us per message, seed {}",
        recording_ ? "compute times of " + bench_.recording : "FLOP of the plan by the dies' peak times share_of_peak",
        o.rounds == 0 ? "every message" : fmt::format("{} of the equal rounds of an exchange", o.rounds), o.jitter,
        o.slow_nodes, o.slow_factor, o.busy_links, o.busy_share, o.message_us, o.seed));
    harness_.note(
        "efficiency: images/s per node by that of the first row of a series; exposed_s: waiting for messages, "
        "slower_s: "
        "for slower ranks; limits: the largest of what is not compute, from 1 % of the step on");
  }

  Harness& harness_;
  ScaleBench bench_;
  const plan::ClusterDescription platform_;
  std::optional<Recording> recording_;
  double first_rate_ = 0;  // images/s and node of the series' first row
};

}  // namespace

void bench_scale(Harness& harness, const ScaleBench& bench) {
  if (!has_simgrid()) simulate({}, {}, {});  // says how to get it
  ScaleMeter(harness, bench).measure();
}

}  // namespace ditrain::bench
