// The planner: what it tries, what it leaves out, and in which order the rest comes.
#include "ditrain/plan/planner.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/config/differences.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/platform/limits.hpp"
#include "platform/synthetic.hpp"
#include "support/small_config.hpp"

using namespace ditrain;
using namespace ditrain::plan;
using Catch::Contains;

namespace {

ClusterDescription cluster(double gbit_per_s, double memory_gb) {
  ClusterDescription p;
  p.name = "cluster", p.nodes = 2, p.dies_per_node = 2;
  p.die = {.cores = 3, .flop_f32_per_s = 1e12, .share = 0.5, .memory_gb = memory_gb, .memory_gb_per_s = 100};
  p.inside = {.gb_per_s = 20, .latency_us = 1};
  p.tree = {{.down = 2, .gbit_per_s = gbit_per_s, .latency_us = 5}};
  return p;
}

ClusterPlan planned(const config::Config& config, const ClusterDescription& platform) {
  return plan_cluster(config, {}, machine_of(platform, DType::kF32));
}

const PlannedRun* find(const std::vector<PlannedRun>& runs, const Choice& c) {
  const auto found = std::find_if(runs.begin(), runs.end(), [&](const PlannedRun& r) {
    return r.choice.ranks_per_node == c.ranks_per_node && r.choice.tensor_ranks == c.tensor_ranks &&
           r.choice.micro_batch == c.micro_batch && r.choice.recompute == c.recompute && r.choice.shards == c.shards &&
           r.choice.tiers == c.tiers && r.choice.bucket_mib == c.bucket_mib;
  });
  return found == runs.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("planner: the order is that of the predicted time, and what computes more loses") {
  config::Config config = test::small_config();
  config.train.global_batch = 16;
  ClusterDescription slow = cluster(100, 16);
  slow.die.flop_f32_per_s = 1e10;  // the time is that of the computation
  const ClusterPlan plan = planned(config, slow);
  REQUIRE(plan.fitting.size() > 20);
  CHECK(plan.too_large.empty());
  for (size_t i = 1; i < plan.fitting.size(); ++i)
    CHECK(plan.fitting[i - 1].step.total_s < 1.01 * plan.fitting[i].step.total_s);
  const Choice usual{.ranks_per_node = 2, .micro_batch = 4, .recompute = nn::Recompute::kNone};
  Choice block = usual;
  block.recompute = nn::Recompute::kBlock;
  REQUIRE(find(plan.fitting, usual) != nullptr);
  REQUIRE(find(plan.fitting, block) != nullptr);
  CHECK(find(plan.fitting, usual)->step.compute_s < find(plan.fitting, block)->step.compute_s);
  CHECK(find(plan.fitting, usual) < find(plan.fitting, block));  // one vector: it comes before
  CHECK(find(plan.fitting, usual)->clusters == 1);
  CHECK(find(plan.fitting, {.ranks_per_node = 1, .micro_batch = 8})->clusters == 2);
  CHECK(plan.fitting.front().choice.recompute != nn::Recompute::kBlock);
}

TEST_CASE("planner: micro-batches of shares without powers of two, single samples and the config's own are tried") {
  config::Config config = test::small_config();
  config.train.global_batch = 60, config.train.micro_batch = 5;
  const ClusterPlan plan = planned(config, cluster(100, 16));
  std::set<int64_t> tried;
  for (const PlannedRun& run : plan.fitting)
    if (run.choice.ranks_per_node == 2 && run.choice.tensor_ranks == 1) tried.insert(run.choice.micro_batch);
  CHECK(tried == std::set<int64_t>{1, 3, 5, 15});  // of 15 samples
}

TEST_CASE("planner: on a slow network bf16 on the wire counts, and the report says why others lose") {
  config::Config config = test::small_config();
  config.train.global_batch = 8;
  const ClusterPlan plan = planned(config, cluster(0.01, 16));
  const ClusterStep& best = plan.fitting.front().step;
  CHECK(best.exposed_s > 0.5 * best.total_s);
  config.dist.wire = DType::kBF16;
  const double rounded_s = planned(config, cluster(0.01, 16)).fitting.front().step.total_s;
  CHECK(rounded_s < 0.7 * best.total_s);
  const std::string text = describe(plan, "--config x.yaml");
  CHECK_THAT(text, Contains("  1. ") && Contains("  5. ") && Contains("\n  recompute         block ") &&
                       Contains(" --map-by ppr:") && Contains("ditrain --config x.yaml") &&
                       Contains("sbatch --nodes=2 --ntasks-per-node=") && Contains("within 0.5 % count as equal"));
}

TEST_CASE("planner: Slurm counts hardware threads, and dies that are faster in bf16 are told of") {
  config::Config config = test::small_config();
  config.train.global_batch = 8;
  ClusterDescription p = cluster(100, 16);
  CHECK_THAT(describe(planned(config, p), ""), !Contains("bf16"));
  p.die.threads_per_core = 2, p.die.flop_f32_per_s = 1e10, p.die.flop_bf16_per_s = 8e10;
  const ClusterPlan plan = planned(config, p);
  const PlannedRun& best = plan.fitting.front();
  CHECK_THAT(describe(plan, ""), Contains(" --cpus-per-task=" + std::to_string(2 * best.cores) + " ") &&
                                     Contains(":PE=" + std::to_string(best.cores) + " ") &&
                                     Contains("with --set train.precision=bf16 the first takes "));
  CHECK((plan.bf16_s > 0 && plan.bf16_s < best.step.total_s / 2));
  p.die.flop_bf16_per_s = 1e10;
  CHECK(planned(config, p).bf16_s == 0);
}

TEST_CASE("planner: what does not fit is left out, by how much is told, and tiers come in") {
  config::Config config = test::small_config();
  config.model.hidden_size = 256, config.model.depth = 6, config.train.global_batch = 32;
  ClusterDescription small = cluster(100, 0.35);
  const ClusterPlan plan = planned(config, small);
  REQUIRE(!plan.fitting.empty());
  REQUIRE(!plan.too_large.empty());
  for (const PlannedRun& run : plan.fitting) CHECK(run.bytes <= run.limit_bytes);
  for (const PlannedRun& run : plan.too_large) CHECK(run.bytes > run.limit_bytes);
  CHECK_THAT(describe(plan, "--config x.yaml"), Contains("too much"));
  CHECK(std::none_of(plan.fitting.begin(), plan.fitting.end(), [](const PlannedRun& r) { return r.choice.tiers; }));
  small.die.memory_gb = 0.01;
  const std::string none = [&] {
    try {
      return describe(planned(config, small), "");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
  }();
  CHECK_THAT(none, Contains("[plan] none of ") && Contains(" per rank, expected at most "));
  small.die.memory_gb = 0.25, small.die.bulk_gb = 4;
  const ClusterPlan tiers = planned(config, small);
  const auto moved =
      std::find_if(tiers.fitting.begin(), tiers.fitting.end(), [](const PlannedRun& r) { return r.choice.tiers; });
  REQUIRE(moved != tiers.fitting.end());
  CHECK(moved->config.memory.automem == config::AutoMem::kPlanned);
  CHECK(moved->config.memory.fast_gib > 0);
}

TEST_CASE("planner: rules of configs exclude placements, and a batch that divides nowhere is refused") {
  config::Config config = test::small_config();
  config.train.global_batch = 4;
  const ClusterPlan plan = planned(config, cluster(100, 16));
  CHECK(plan.not_allowed > 0);  // shards under dp_tp
  config.train.global_batch = 1;
  CHECK_THROWS_WITH(planned(config, cluster(100, 16)),
                    Contains("[plan] no placement on this cluster is allowed") && Contains("train.global_batch"));
}

TEST_CASE("planner: outer steps are planned, cost less on a slow network, and are told") {
  config::Config config = test::small_config();
  config.train.global_batch = 8;
  const ClusterDescription slow = cluster(0.01, 16);
  const double plain_s = planned(config, slow).fitting.front().step.total_s;
  config.dist.outer = optim::OuterConfig{.every = 20};
  const ClusterPlan plan = planned(config, slow);
  const PlannedRun& best = plan.fitting.front();
  REQUIRE(best.step.outer);
  CHECK(best.step.total_s < 0.2 * plain_s);
  for (const config::Difference& d : config::differences(plan.wanted, best.config)) CHECK(d.key != "dist.outer");
  CHECK_THAT(describe(plan, ""),
             Contains("every 20 steps an outer step: ") && Contains(" s and passes over the weights for "));
  CHECK(std::none_of(plan.fitting.begin(), plan.fitting.end(), [](const PlannedRun& r) { return r.choice.shards; }));
  config.dist.outer->overlap = true;
  const ClusterPlan overlapped = planned(config, slow);
  CHECK(overlapped.fitting.front().step.total_s < best.step.total_s);
  CHECK_THAT(describe(overlapped, ""), Contains("hides behind the next steps"));

  ClusterDescription node = slow;
  node.nodes = 1, node.tree.clear();
  CHECK_THROWS_WITH(planned(config, node), Contains("[plan] dist.outer averages over nodes") && Contains("--nodes N"));
  config.dist.simulate_link = dist::LinkModel{.hosts = 2};
  CHECK_THROWS_WITH(planned(config, slow), Contains("[plan]") && Contains("--set dist.simulate_link=off"));
}

TEST_CASE(
    "planner: a machine has as many dies as domains with cores of ours, and of their cores those that a rank may use") {
  config::Config config = test::small_config();
  config.parallel.threads = 1;
  const bool limited = GENERATE(false, true);
  std::optional<platform::ScopedVariable> one_thread;
  if (limited) one_thread.emplace("OMP_NUM_THREADS", "1");
  const ClusterDescription machine = measure_this_machine(config).platform;
  const platform::Topology topology = platform::probe_topology();
  const std::set<int> domains(topology.allowed_domains.begin(), topology.allowed_domains.end());
  CHECK(machine.dies_per_node == int(domains.size()));
  const int cores = std::min(topology.allowed_cores, platform::default_threads(topology, {}).threads);
  CHECK(machine.die.cores == std::max(1, cores / machine.dies_per_node));
  if (!limited) return;
  CHECK(machine.die.cores == 1);
  if (topology.allowed_cores > 1) CHECK_THAT(machine.name, Contains(" cores: OMP_NUM_THREADS)"));
  CHECK(machine.dies_per_node <= topology.numa_domains);
}
