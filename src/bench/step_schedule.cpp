#include "step_schedule.hpp"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <sstream>

#include "ditrain/base/error.hpp"
#include "ditrain/config/agreement.hpp"
#include "ditrain/config/replicas.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/nn/block.hpp"
#include "ditrain/plan/step_timeline.hpp"
#include "ditrain/report/status.hpp"
#include "turns.hpp"

namespace ditrain::bench {
namespace {

int dies_of_rank(const plan::RunPlan& plan, const plan::ClusterDescription& cluster) {
  return cluster.dies_per_node / plan.place.ranks_on_node;
}

double number_at(const nlohmann::json& j, const char* name) {
  return j.contains(name) && j[name].is_number() ? j[name].get<double>() : 0.0;
}

}  // namespace

plan::RunPlan plan_on_cluster(config::Config config, const plan::ClusterDescription& cluster) {
  using config::Strategy;
  const int dies = cluster.dies_per_node, cores = cluster.die.cores;
  const bool whole_node = config.parallel.strategy == Strategy::kCftp;
  if (config.parallel.strategy == Strategy::kDpTp && config.parallel.tensor_ranks == 0)
    config.parallel.tensor_ranks = std::gcd(dies, config.model.num_heads);
  plan::RankPlace place{.cluster_sizes = std::vector<int>(size_t(whole_node ? dies : 1), cores),
                        .ranks_on_node = whole_node ? 1 : dies};
  const int ranks = cluster.nodes * place.ranks_on_node;
  config::validate_for_ranks(config, ranks);
  return plan::plan_run(config, ranks, place);
}

ComputeTimes expected_times(const plan::RunPlan& plan, const plan::ClusterDescription& cluster) {
  const plan::StepWork work = plan::work_of(plan);
  const double dies = dies_of_rank(plan, cluster);
  const double flop_per_s = dies * cluster.die.training_flop_per_s(plan.config.train.precision);
  const double compute_s = (work.gemm_flop + 6 * work.attention_macs) / flop_per_s;
  const double update_products_s = work.update_flop / flop_per_s;  // as plan::rates_of counts them
  return {
      .compute_s = compute_s,
      .last_backward_s =
          compute_s * plan::share_of_backward(plan.config) * double(plan.micro_batch) / double(plan.samples),
      .update_s = plan::kPassesOfUpdate * sizeof(float) * work.parameters / (dies * cluster.die.memory_gb_per_s * 1e9) +
                  update_products_s,
      .update_products_s = update_products_s};
}

Recording read_recording(const std::string& folder) {
  const std::string metrics = folder + "/metrics.jsonl", config = folder + "/config.yaml";
  for (const std::string& path : {metrics, config})
    if (!std::filesystem::exists(path))
      refuse("ditbench", "--recording: no such file: " + path, "", "the folder of a run (ditrain --out)");
  const auto status = report::read_status(folder, report::unix_time_s());
  if (const std::string build = status ? status->build : ""; build != config::build_name())
    refuse("ditbench", "--recording: " + folder + " is the run of another build, whose times may be others",
           build.empty() ? "none in status.json" : build, config::build_name(),
           "record anew: ditrain --config " + config + " --out NEW_FOLDER");
  Recording recording{.config = config::load_config(config)};
  std::vector<double> step_s, work_s, backward_s, update_s, waiting_s;
  files::read_lines(metrics, [&](const std::string& line) {
    const auto j = files::parse_json_or_discard(line);
    if (!j.is_object() || !j.contains("seconds") || !(number_at(j, "images_per_second") > 0)) return;
    const nlohmann::json& s = j["seconds"];
    step_s.push_back(double(recording.config.train.global_batch) / number_at(j, "images_per_second"));
    backward_s.push_back(number_at(s, "backward"));
    work_s.push_back(number_at(s, "prepare") + number_at(s, "forward") + number_at(s, "loss") + backward_s.back());
    update_s.push_back(number_at(s, "optimizer"));
    waiting_s.push_back(number_at(s, "allreduce_exposed"));
  });
  if (step_s.size() < 2)
    refuse("ditbench", "--recording: " + metrics + " has too few steps", std::to_string(step_s.size()),
           "at least 2, of which the first does not count");
  const auto median = [](std::vector<double> x) {
    x.erase(x.begin());
    return quantile(std::move(x), 0.5);
  };
  recording.step_s = median(step_s);
  ComputeTimes& t = recording.times;
  t.compute_s = median(work_s), t.last_backward_s = median(backward_s), t.update_s = median(update_s);
  t.rest_s = std::max(0.0, recording.step_s - t.compute_s - t.update_s - median(waiting_s));
  return recording;
}

void expect_same_work(const Recording& recording, const config::Config& wanted, const std::string& folder) {
  config::Config other = wanted;
  other.dist = recording.config.dist;
  std::istringstream ours(config::to_yaml(other)), theirs(config::to_yaml(recording.config));
  for (std::string a, b; std::getline(ours, a) && std::getline(theirs, b);)
    if (a != b)
      refuse("ditbench", "--recording: " + folder + " is the run of another config", a.substr(a.find_first_not_of(' ')),
             b.substr(b.find_first_not_of(' ')), "a recording of this config, or flags that change section dist alone");
}

StepSchedule schedule_of(const plan::RunPlan& plan, const ComputeTimes& times, const plan::ClusterDescription& cluster,
                         SumAlgorithm algorithm) {
  const config::Config& c = plan.config;
  const plan::GradientPlan& gradients = plan.gradients;
  const double tensor_s = plan::tensor_sums_s(plan, cluster),
               in_backward = plan::share_of_backward_sums(c) * double(plan.micro_batch) / double(plan.samples);
  StepSchedule s{.compute_s = times.compute_s + tensor_s,
                 .tensor_s = tensor_s,
                 .rest_s = times.rest_s,
                 .overlap = c.dist.overlap,
                 .early = gradients.updates_early,
                 .ranks_per_node = plan.place.ranks_on_node,
                 .node_bytes_per_s = cluster.inside.gb_per_s * 1e9,
                 .node_latency_s = cluster.inside.latency_us * 1e-6};
  if (plan.replicas == 1) {
    s.lone_update_s = times.update_s;
    return s;
  }
  if (algorithm == SumAlgorithm::kOuter || algorithm == SumAlgorithm::kOuterOverlapped) {
    const plan::OuterPasses passes = plan::outer_passes({.overlap = algorithm == SumAlgorithm::kOuterOverlapped});
    const double pass_s = (times.update_s - times.update_products_s) / plan::kPassesOfUpdate;
    s.take_s = passes.take * pass_s, s.apply_s = passes.apply * pass_s;
  }
  // Ranks with the same part of each replica sum: one of each group of tensor_ranks.
  s.leaders_per_node = config::tensor_ranks(c);
  s.ranks_per_node = std::max(1, s.ranks_per_node / s.leaders_per_node);
  const double backward_s = times.last_backward_s + tensor_s * in_backward;
  const std::vector<double> ready = plan::ready_shares(plan);
  const auto factors = [&](const parallel::Range& bucket) -> const plan::FactorLayer* {
    for (const plan::FactorLayer& layer : gradients.factors)
      if (layer.slice.begin == bucket.begin && layer.slice.end == bucket.end) return &layer;
    return nullptr;
  };
  for (int64_t k = 0; k < gradients.buckets.size(); ++k) {
    const parallel::Range& bucket = gradients.buckets[k];
    const double elements = double(bucket.size()), bytes = elements * sizeof(float);
    Exchange e{.wire_bytes = elements * double(dtype_bytes(c.dist.wire)),
               .node_bytes = bytes,
               .ready_s = s.compute_s - backward_s * (1 - ready[size_t(k)]),
               .update_s = times.update_s * elements / double(gradients.buckets.n())};
    if (const plan::FactorLayer* layer = factors(bucket)) {
      e.gathers = true;
      e.wire_bytes = e.node_bytes = double(gradients.factor_rows * layer->row_elements()) * sizeof(float);
    }
    s.sums.push_back(e);
    if (algorithm == SumAlgorithm::kShards || algorithm == SumAlgorithm::kReduceScatter)
      s.new_weights.push_back({.gathers = true, .wire_bytes = bytes, .node_bytes = bytes});
    if (algorithm == SumAlgorithm::kOuter || algorithm == SumAlgorithm::kOuterOverlapped)
      s.outer.push_back({.wire_bytes = plan::outer_wire_bytes(elements, c.dist), .node_bytes = bytes});
  }
  return s;
}

}  // namespace ditrain::bench
