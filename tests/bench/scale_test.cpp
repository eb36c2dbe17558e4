#include "ditrain/bench/scale.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <map>

#include "../../src/bench/cluster_simulation.hpp"
#include "../../src/bench/step_schedule.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/bench/step.hpp"
#include "ditrain/config/agreement.hpp"
#include "ditrain/dist/link_model.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/plan/step_timeline.hpp"
#include "ditrain/report/status.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using namespace ditrain::bench;
using Catch::Contains;

namespace {

// 8 nodes below each of 8 switches with half the links up.
plan::ClusterDescription cluster(int nodes, int dies = 2) {
  plan::ClusterDescription c{.name = "test", .nodes = nodes, .dies_per_node = dies};
  c.die = {.cores = 4, .flop_f32_per_s = 1e12, .share = 0.5, .memory_gb = 64, .memory_gb_per_s = 100};
  c.inside = {.gb_per_s = 20, .latency_us = 1};
  c.tree = {{.down = 8, .up = 4, .gbit_per_s = 10, .latency_us = 5}, {.down = 8, .gbit_per_s = 10, .latency_us = 2}};
  return c;
}

// `buckets` of a megabyte each that become ready evenly over the second half of the compute.
StepSchedule schedule(int buckets, int ranks_per_node = 1) {
  StepSchedule s{.compute_s = 0.02, .ranks_per_node = ranks_per_node, .node_bytes_per_s = 20e9, .node_latency_s = 1e-6};
  for (int k = 0; k < buckets; ++k)
    s.sums.push_back({.wire_bytes = 1e6,
                      .node_bytes = 1e6,
                      .ready_s = s.compute_s * (0.5 + 0.5 * (k + 1) / buckets),
                      .update_s = 1e-4});
  for (const Exchange& e : s.sums) s.outer.push_back({.wire_bytes = e.wire_bytes, .node_bytes = e.node_bytes});
  return s;
}

void need_simgrid() {
  if (!has_simgrid()) SKIP("no SimGrid");
}

double step_s(const plan::ClusterDescription& c, const StepSchedule& s, const SimulationOptions& o) {
  return simulate(c, s, o).step_s;
}

}  // namespace

TEST_CASE("scale: a build without SimGrid says which package and option it needs") {
  if (has_simgrid()) SKIP("this build has SimGrid");
  CHECK_THROWS_WITH(simulate(cluster(2), schedule(1), {}),
                    Contains("libsimgrid-dev") && Contains("DITRAIN_SIMGRID=ON"));
}

TEST_CASE("scale: rounds of an exchange carry the bytes of all pairs at each level of the tree") {
  const int nodes = GENERATE(2, 8, 16, 64, 40);
  const plan::ClusterDescription c = cluster(nodes);
  std::map<int, double> all, some;
  for (const Flow& f : flows_of(c, 0)) all[c.level_between(f.from, f.to)] += f.share;
  std::vector<double> in(size_t(nodes), 0.0), out(size_t(nodes), 0.0);
  const std::vector<Flow> flows = flows_of(c, 4);
  CHECK(flows.size() <= size_t(nodes) * 8);
  for (const Flow& f : flows) {
    REQUIRE(f.from != f.to);
    some[c.level_between(f.from, f.to)] += f.share;
    in[size_t(f.to)] += f.share, out[size_t(f.from)] += f.share;
  }
  for (const auto& [level, share] : all) CHECK(some[level] == Approx(share).epsilon(nodes == 40 ? 0.05 : 1e-9));
  for (int i = 0; i < nodes; ++i) CHECK((in[size_t(i)] == Approx(1) && out[size_t(i)] == Approx(1)));
}

TEST_CASE("scale: one bucket between two nodes takes what the model of links says") {
  need_simgrid();
  const plan::ClusterDescription c = cluster(2, 1);
  StepSchedule s = schedule(1);
  s.sums[0].ready_s = s.compute_s, s.sums[0].update_s = 0, s.sums[0].node_bytes = 0;
  const dist::LinkModel link{.gbit_s = 10, .latency_us = 10, .hosts = 2};
  const double facts_s = 2 * 10e-6;
  CHECK(step_s(c, s, {.rounds = 0}) == Approx(s.compute_s + link.seconds(1e6) + facts_s).epsilon(1e-6));
  s.overlap = false;
  CHECK(step_s(c, s, {.algorithm = SumAlgorithm::kRing, .rounds = 0}) ==
        Approx(s.compute_s + link.seconds(1e6) + facts_s).epsilon(1e-6));
}

TEST_CASE("scale: some rounds stand for all, within 2 % at 64 nodes, also with jitter") {
  need_simgrid();
  const SimulationOptions all{.steps = 1, .rounds = 0, .jitter = 0.05};
  SimulationOptions some = all;
  some.rounds = 4;
  const double expected = step_s(cluster(64), schedule(2), all);
  CHECK(expected > 1.05 * schedule(2).compute_s);  // links do count
  CHECK(step_s(cluster(64), schedule(2), some) == Approx(expected).epsilon(0.02));
}

TEST_CASE("scale: a node as one actor takes as long as its dies with messages between them") {
  need_simgrid();
  const SumAlgorithm algorithm = GENERATE(SumAlgorithm::kTwoLevel, SumAlgorithm::kShards);
  const int dies = 4;
  StepSchedule s = schedule(6, dies);
  if (algorithm == SumAlgorithm::kShards)
    for (const Exchange& e : s.sums)
      s.new_weights.push_back({.gathers = true, .wire_bytes = e.wire_bytes, .node_bytes = e.node_bytes});
  const SimulationOptions one{.algorithm = algorithm, .rounds = 0, .jitter = 0.02};
  SimulationOptions every = one;
  every.every_die = true;
  CHECK(step_s(cluster(4, dies), s, one) == Approx(step_s(cluster(4, dies), s, every)).epsilon(0.01));
}

TEST_CASE("scale: overlap hides messages, shards move half as much again, outer steps nearly none") {
  need_simgrid();
  const plan::ClusterDescription c = cluster(16);
  const StepSchedule s = schedule(8);
  const auto exposed = [&](const StepSchedule& schedule, SumAlgorithm algorithm) {
    return simulate(c, schedule, {.algorithm = algorithm, .outer_every = 10, .rounds = 0}).exposed_s;
  };
  StepSchedule late = s, sharded = s;
  late.overlap = false;
  for (const Exchange& e : s.sums)
    sharded.new_weights.push_back({.gathers = true, .wire_bytes = e.wire_bytes, .node_bytes = e.node_bytes});
  const double at_end = exposed(late, SumAlgorithm::kTwoLevel), overlapped = exposed(s, SumAlgorithm::kTwoLevel);
  CHECK(overlapped < 0.9 * at_end);
  late.new_weights = sharded.new_weights;
  CHECK(exposed(late, SumAlgorithm::kShards) > 1.4 * at_end);
  CHECK(exposed(late, SumAlgorithm::kReduceScatter) == Approx(at_end).epsilon(0.05));
  late.new_weights.clear(), late.early = false;  // an outer step waits for all sums, too, before weights change
  const double outer = exposed(s, SumAlgorithm::kOuter),
               facts = exposed(schedule(0), SumAlgorithm::kTwoLevel);  // of every step
  CHECK(outer - facts == Approx((exposed(late, SumAlgorithm::kTwoLevel) - facts) / 10).epsilon(0.01));
  CHECK(exposed(s, SumAlgorithm::kOuterOverlapped) < 0.3 * outer);
}

TEST_CASE("scale: an outer step takes what the planner says, in f32 and bf16, with overlap and without") {
  need_simgrid();
  plan::ClusterDescription c = cluster(4, 1);
  c.inside.gb_per_s = c.die.memory_gb_per_s;  // at which the simulation adds slices, a time that the planner lacks
  config::Config config = step_config({.model = "S"}, 4);
  config.parallel.strategy = config::Strategy::kDp;
  for (const DType wire : {DType::kF32, DType::kBF16})
    for (const int every : {2, 20})
      for (const bool overlap : {false, true}) {
        CAPTURE(every, overlap, dtype_name(wire));
        config.dist.wire = wire;
        const plan::RunPlan plain = plan_on_cluster(config, c);
        const SumAlgorithm algorithm = overlap ? SumAlgorithm::kOuterOverlapped : SumAlgorithm::kOuter;
        const ComputeTimes times = expected_times(plain, c);
        const SimulatedStep simulated = simulate(c, schedule_of(plain, times, c, algorithm),
                                                 {.algorithm = algorithm, .outer_every = every, .rounds = 0});
        config::Config grouped = config;
        grouped.dist.outer = optim::OuterConfig{.every = every, .overlap = overlap, .groups = 4};
        const plan::RunPlan outer = plan_on_cluster(grouped, c);
        REQUIRE(outer.gradients.groups == 4);
        const plan::ClusterStep planned = plan::predict_step(outer, plan::rates_of(c.die, DType::kF32), c, c.die.cores);
        CHECK(planned.total_s == Approx(simulated.step_s).epsilon(0.02));
        CHECK(planned.exposed_s == Approx(simulated.exposed_s).epsilon(0.1).margin(1e-3 * simulated.step_s));
        CHECK((simulated.exposed_s > 0.01 * simulated.step_s) == !overlap);
      }
}

TEST_CASE("scale: a slow node holds all others back, jitter the mean, and the seed gives the same again") {
  need_simgrid();
  const plan::ClusterDescription c = cluster(4);
  const StepSchedule s = schedule(2);
  const SimulatedStep even = simulate(c, s, {});
  const SimulatedStep slow = simulate(c, s, {.slow_nodes = 1, .slow_factor = 2});
  CHECK(slow.step_s > even.step_s + 0.9 * s.compute_s);
  CHECK(slow.slower_s == Approx(0.75 * s.compute_s).epsilon(0.05));  // three of four wait
  CHECK(simulate(c, s, {.busy_links = 1, .busy_share = 0.5}).exposed_s > 1.3 * even.exposed_s);
  const double jittered = step_s(c, s, {.jitter = 0.1, .seed = 1});
  CHECK(jittered > 1.02 * even.step_s);
  CHECK(jittered == step_s(c, s, {.jitter = 0.1, .seed = 1}));
  CHECK(jittered != step_s(c, s, {.jitter = 0.1, .seed = 2}));
}

TEST_CASE("scale: buckets of a plan leave in backward, and the adaLN factors of a small batch are gathered") {
  const plan::ClusterDescription c = cluster(4);
  config::Config config = step_config({.model = "S", .sets = {"dist.bucket_mib=4"}}, 64);
  config.parallel.strategy = config::Strategy::kDp;
  const plan::RunPlan plan = plan_on_cluster(config, c);
  REQUIRE(plan.world_size == 8);
  const ComputeTimes times = expected_times(plan, c);
  // 36.3 GFLOP per image and 8 images on half a TFLOP/s
  CHECK(times.compute_s == Approx(8 * 36.3e9 / 0.5e12).epsilon(0.03));
  const StepSchedule s = schedule_of(plan, times, c, SumAlgorithm::kTwoLevel);
  REQUIRE(int64_t(s.sums.size()) == plan.gradients.buckets.size());
  double before = s.compute_s - times.last_backward_s, bytes = 0;
  int gathered = 0;
  for (const Exchange& e : s.sums) {
    CHECK(e.ready_s >= before);
    before = e.ready_s;
    gathered += e.gathers;
    bytes += e.gathers ? 0 : e.wire_bytes;
  }
  CHECK(before == Approx(s.compute_s));
  CHECK(s.sums.front().ready_s < s.compute_s - 0.8 * times.last_backward_s);
  CHECK(gathered == int(plan.gradients.factors.size()));
  CHECK(gathered > 0);
  CHECK(bytes < 4.0 * double(plan.gradients.buckets.n()));
  CHECK(s.update_s() == Approx(times.update_s));
}

TEST_CASE("scale: an update has the products of Muon, as in a plan") {
  const plan::ClusterDescription c = cluster(2, 1);
  const auto planned = [&](const std::vector<std::string>& sets) {
    config::Config config = step_config({.model = "S", .sets = sets}, 64);
    config.parallel.strategy = config::Strategy::kDp;
    return plan_on_cluster(config, c);
  };
  const ComputeTimes plain = expected_times(planned({}), c);
  const plan::RunPlan muon = planned({"optimizer.kind=muon"});
  const ComputeTimes times = expected_times(muon, c);
  CHECK(plain.update_products_s == 0);
  CHECK(times.update_products_s > 0.1 * plain.update_s);
  CHECK(times.update_s == Approx(plain.update_s + times.update_products_s));
  const plan::ClusterStep step = plan::predict_step(muon, plan::rates_of(c.die, DType::kF32), c, c.die.cores);
  CHECK(times.update_s == Approx(step.update_s));
}

TEST_CASE("scale: ranks of a strategy, and what they have to do") {
  const plan::ClusterDescription c = cluster(2, 4);
  const auto planned = [&](config::Strategy strategy, nn::Recompute recompute = nn::Recompute::kSelective) {
    config::Config config = step_config({.model = "S"}, 64);
    config.parallel.strategy = strategy, config.train.recompute = recompute;
    return plan_on_cluster(config, c);
  };
  const plan::RunPlan cftp = planned(config::Strategy::kCftp), dp = planned(config::Strategy::kDp),
                      dp_tp = planned(config::Strategy::kDpTp);
  CHECK((cftp.world_size == 2 && dp.world_size == 8 && dp_tp.world_size == 8));
  CHECK((cftp.replicas == 2 && dp.replicas == 8 && dp_tp.replicas == 4));  // S has 6 heads: two ranks per replica
  const double compute_s = expected_times(cftp, c).compute_s;
  CHECK(expected_times(dp, c).compute_s == Approx(compute_s));
  CHECK(expected_times(dp_tp, c).compute_s == Approx(compute_s));
  CHECK(expected_times(dp, c).update_s == Approx(4 * expected_times(cftp, c).update_s));
  const auto tensor_s = [&](const plan::RunPlan& plan) {
    return schedule_of(plan, expected_times(plan, c), c, SumAlgorithm::kTwoLevel).tensor_s;
  };
  CHECK((tensor_s(cftp) == 0 && tensor_s(dp) == 0 && tensor_s(dp_tp) > 0));
  const plan::RunPlan again = planned(config::Strategy::kDpTp, nn::Recompute::kBlock);
  CHECK(tensor_s(again) == Approx(1.5 * tensor_s(dp_tp)));
  CHECK(plan::share_of_backward_sums(dp_tp.config) == 0.5);
  CHECK(plan::share_of_backward_sums(again.config) == Approx(2.0 / 3));
}

TEST_CASE("scale: rows, and what is refused") {
  need_simgrid();
  const TemporaryFolder folder;
  std::ofstream(folder / "pair.yaml")
      << "name: pair\nnodes: 2\ndies_per_node: 1\n"
         "die: {cores: 1, tflop_f32_per_s: 1, share: 0.5, memory_gb: 8, memory_gb_per_s: 20}\n"
         "inside: {gb_per_s: 10, latency_us: 1}\n"
         "tree: [{down: 2, gbit_per_s: 1, latency_us: 5}]\n";
  Harness harness(1, Effort::quick());
  ScaleBench bench{.platform = folder / "pair.yaml",
                   .models = {"S"},
                   .algorithms = {SumAlgorithm::kTwoLevel, SumAlgorithm::kOuter},
                   .batch = 2};
  bench.simulation.outer_every = 5;
  SECTION("rows") {
    bench_scale(harness, bench);
    const auto rows = files::parse_json(to_json(harness.report())).at("rows");
    REQUIRE(rows.size() == 4);
    CHECK((rows[0].at("efficiency") == 1 && rows[2].at("efficiency") == 1));
    CHECK(rows[1].at("efficiency") < rows[3].at("efficiency"));
    CHECK(rows[1].at("limits") == "messages");
    CHECK(rows[1].at("images_per_second").get<double>() * rows[1].at("step_s").get<double>() == Approx(4));
  }
  SECTION("more nodes than the platform has") {
    bench.nodes = {4};
    CHECK_THROWS_AS(bench_scale(harness, bench), InputError);
  }
  SECTION("a later row that cannot run is refused before the first") {
    bench.nodes = {1, 2}, bench.global_batch = 3;
    CHECK_THROWS_AS(bench_scale(harness, bench), InputError);
    bench.global_batch = 4, bench.sets = {"parallel.threads=2"};
    CHECK_THROWS_WITH(bench_scale(harness, bench), Contains("parallel.threads is not measured here"));
    bench.sets = {"dist.shard_optimizer=true"};
    CHECK_THROWS_WITH(bench_scale(harness, bench), Contains("try --ways"));
    CHECK(harness.report().rows.empty());
  }
  SECTION("a long ring") {
    CHECK_THROWS_WITH(simulate(cluster(65), schedule(1), {.algorithm = SumAlgorithm::kRing}),
                      Contains("ring") && Contains("64"));
    CHECK_THROWS_WITH(simulate(cluster(2), schedule(1), {.slow_nodes = 3}), Contains("3 of 2"));
  }
  SECTION("a recording of another build or config, or of too few steps") {
    config::Config config = step_config({.model = "S"}, 2);
    std::ofstream(folder / "config.yaml") << config::to_yaml(config);
    const auto write_steps = [&](int steps) {
      std::ofstream metrics(folder / "metrics.jsonl");
      for (int i = 0; i < steps; ++i)
        metrics << "{\"images_per_second\": " << (i == 0 ? 1 : 4)
                << ", \"seconds\": {\"forward\": 0.1, \"backward\": 0.2, \"optimizer\": 0.05, "
                   "\"allreduce_exposed\": 0.07}}\n";
    };
    const auto write_status = [&](const std::string& build) {
      std::ofstream(folder / "status.json") << report::to_json({.build = build});
    };
    bench.recording = folder.path();
    bench.algorithms = {SumAlgorithm::kTwoLevel};
    CHECK_THROWS_WITH(bench_scale(harness, bench), Contains("no such file"));
    write_steps(3);
    CHECK_THROWS_WITH(bench_scale(harness, bench), Contains("another build") && Contains("none in status.json"));
    write_status("0.1 (abc)");
    CHECK_THROWS_WITH(bench_scale(harness, bench), Contains("another build") && Contains("0.1 (abc)"));
    write_status(config::build_name());
    bench.models = {"B"};
    CHECK_THROWS_WITH(bench_scale(harness, bench), Contains("another config"));
    bench.models = {"S"};
    bench.sets = {"optimizer.lr=1"};
    CHECK_THROWS_WITH(bench_scale(harness, bench), Contains("another config") && Contains("lr"));
    bench.sets = {"dist.overlap=false"};
    write_steps(1);
    CHECK_THROWS_WITH(bench_scale(harness, bench), Contains("too few steps"));
    write_steps(3);
    bench.nodes = {1};
    bench_scale(harness, bench);
    CHECK(harness.report().rows.at(0).time.median_s == Approx(0.43));  // without what it waited for others
    bench.algorithms = {SumAlgorithm::kShards};
    CHECK_THROWS_WITH(bench_scale(harness, bench), Contains("dist.shard_optimizer: false"));
    bench.algorithms = {SumAlgorithm::kTwoLevel};
    bench.sets = {"dist.outer={every: 2}", "train.steps=4", "checkpoint.every_steps=0"};
    CHECK_THROWS_AS(bench_scale(harness, bench), InputError);
  }
}
