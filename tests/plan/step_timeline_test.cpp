// The time of steps on clusters: sums in closed form by hand, and the order of things against a clock that ticks.
#include "ditrain/plan/step_timeline.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "support/small_config.hpp"

using namespace ditrain;
using namespace ditrain::plan;

namespace {

// Two racks of 4 nodes; 10^9 bytes per second to a node, 10^9 from a rack.
ClusterDescription racks(int nodes = 8) {
  ClusterDescription p;
  p.name = "racks", p.nodes = nodes, p.dies_per_node = 2;
  p.die = {.cores = 4, .flop_f32_per_s = 2e12, .share = 0.5, .memory_gb = 8, .memory_gb_per_s = 72};
  p.inside = {.gb_per_s = 10, .latency_us = 0};
  p.tree = {{.down = 4, .up = 1, .gbit_per_s = 8, .latency_us = 1}, {.down = 2, .gbit_per_s = 8, .latency_us = 1}};
  return p;
}

// The rules once more, by a clock of whole ticks: of what the engine has under way, the oldest goes first.
struct Ticks {
  int total = 0, exposed = 0;
};
Ticks by_ticks(const StepTimes& t) {
  struct Operation {
    int ready, part = 0, left = 0;
    std::vector<int> parts;
    bool begun = false;
  };
  std::vector<Operation> queue;
  const auto add = [&](const TransferTime& time, double ready) {
    queue.push_back({.ready = int(ready), .parts = {int(time.before_s), int(time.wire_s), int(time.after_s)}});
  };
  for (const BucketTimes& b : t.buckets) add(b.sum, t.overlap ? b.ready_s : t.compute_s);
  const size_t n = t.buckets.size();
  size_t waiting = 0;  // for this operation
  size_t updated = 0;
  int busy_until = int(t.compute_s);
  bool updating = false;
  Ticks ticks;
  for (int now = 0; now < 10000; ++now) {
    int owner[2] = {-1, -1};
    for (bool again = true; again;) {
      again = false;
      int under_way = 0;
      for (size_t i = 0; i < queue.size() && under_way < 2; ++i) {
        Operation& o = queue[i];
        if (o.part == 3) continue;
        ++under_way;
        if (!o.begun && o.ready <= now && o.parts[size_t(o.part)] == 0) {
          ++o.part, again = true;
          break;
        }
      }
      if (again) continue;
      // What has begun goes on.
      under_way = 0;
      owner[0] = owner[1] = -1;
      std::vector<size_t> active;
      for (size_t i = 0; i < queue.size() && active.size() < 2; ++i)
        if (queue[i].part < 3) active.push_back(i);
      for (const size_t i : active)
        if (queue[i].begun) owner[queue[i].part % 2] = int(i);
      for (const size_t i : active) {
        Operation& o = queue[i];
        if (o.begun || o.ready > now || owner[o.part % 2] >= 0) continue;
        o.begun = true, o.left = o.parts[size_t(o.part)], owner[o.part % 2] = int(i);
      }
      // The thread that computes.
      while (now >= busy_until) {
        if (updating) {
          if (t.sharded) add(t.buckets[updated].gather, now);
          ++updated, updating = false, again = t.sharded;
        }
        const bool all_arrived = waiting >= n;
        if (updated < n && (t.updates_early ? updated < waiting : all_arrived)) {
          busy_until = now + int(t.buckets[updated].update_s), updating = true;
        } else if (waiting < (t.sharded ? 2 * n : n) && waiting < queue.size() && queue[waiting].part == 3) {
          ++waiting;
        } else {
          break;
        }
      }
    }
    if (updated == n && waiting == (t.sharded ? 2 * n : n)) return ticks.total = now, ticks;
    if (now >= busy_until) ++ticks.exposed;
    for (const int i : owner) {
      if (i < 0) continue;
      Operation& o = queue[size_t(i)];
      if (--o.left == 0) ++o.part, o.begun = false, o.ready = now + 1;
    }
  }
  return ticks;
}

}  // namespace

TEST_CASE("sums between nodes take what their links carry, by hand") {
  const double bytes = 8e9;
  // 8 nodes: each sends 7/8 of it at 1 GB/s; 4 nodes of a rack send half of theirs, 16 GB, over 1 GB/s.
  const ClusterDescription p = racks();
  const TransferTime sum = NetworkTime(p, 2).allreduce(bytes);
  CHECK(sum.before_s == Approx(0.4));  // half of it at 10 GB/s
  CHECK(sum.wire_s == Approx(2 * (16 + 4e-6)));
  CHECK(sum.after_s == Approx(0.4));
  CHECK(NetworkTime(p, 1).allreduce(bytes).total_s() == Approx(sum.wire_s));
  CHECK(NetworkTime(p, 2).allreduce(bytes, 0.5).wire_s == Approx(2 * (8 + 4e-6)));
  CHECK(NetworkTime(p, 2).reduce_scatter(bytes).total_s() == Approx(sum.total_s() / 2));
  CHECK(NetworkTime(p, 2).allgather(bytes).total_s() == Approx(sum.total_s() / 2));
  // In one rack only the nodes' own links count: 3/4 of it.
  const ClusterDescription rack = racks(4);
  CHECK(NetworkTime(rack, 1).allreduce(bytes).wire_s == Approx(2 * (6 + 2e-6)));
  // 5 nodes: a rack of 4 sends 4 x 1/5 of 8 GB over its link, the same as a node its 4/5.
  const ClusterDescription five = racks(5);
  CHECK(NetworkTime(five, 1).allreduce(bytes).wire_s == Approx(2 * (6.4 + 4e-6)));
  const ClusterDescription node = racks(1);
  CHECK(NetworkTime(node, 1).allreduce(bytes).total_s() == 0);
  CHECK(NetworkTime(node, 2).node_sum_s(bytes, 2) == Approx(0.8));
}

TEST_CASE("a flat sum sends whole buckets along a tree over all ranks, by hand") {
  const double bytes = 8e9;
  // 16 ranks. Up: over 1 rank 0.8 s in a node, over 2, 4 and 8 ranks 8 s each. Down: both ranks of a node send to the
  // next node and over two nodes, 16 s each, and all 8 ranks of a rack to the other one, 64 s.
  const TransferTime sum = NetworkTime(racks(), 2).flat_allreduce(bytes);
  CHECK(sum.before_s == Approx(0.8));
  CHECK(sum.wire_s == Approx(3 * 8 + 16 + 16 + 64 + 2 * (2e-6 + 2e-6 + 4e-6)).epsilon(1e-12));
  CHECK(sum.after_s == Approx(0.8));
  const TransferTime in_node = NetworkTime(racks(1), 2).flat_allreduce(bytes);
  CHECK((in_node.wire_s == 0 && in_node.total_s() == Approx(1.6)));
  // 3 ranks: the last round has one receiver.
  CHECK(NetworkTime(racks(3), 1).flat_allreduce(bytes).wire_s == Approx(4 * (8 + 2e-6)));
}

TEST_CASE("a step's order of things is that of a clock that ticks") {
  std::mt19937 random(1);
  const auto up_to = [&](int most) { return double(random() % unsigned(most + 1)); };
  int hidden = 0;
  for (int round = 0; round < 300; ++round) {
    StepTimes times{.compute_s = 5 + up_to(20)};
    times.overlap = round % 4 != 0, times.updates_early = round % 3 != 0, times.sharded = round % 2 != 0;
    const int buckets = 1 + int(up_to(4));
    double ready_s = 1;
    for (int k = 0; k < buckets; ++k) {
      ready_s = std::min(times.compute_s, ready_s + up_to(5));
      times.buckets.push_back({.ready_s = ready_s,
                               .sum = {up_to(3), up_to(6), up_to(3)},
                               .update_s = up_to(3),
                               .gather = {0, up_to(4), up_to(2)}});
    }
    INFO("round " << round);
    const Timeline line = timeline_of(times);
    const Ticks ticks = by_ticks(times);
    CHECK(line.total_s == Approx(ticks.total));
    CHECK(line.exposed_s == Approx(ticks.exposed));
    CHECK(line.total_s == Approx(times.compute_s + line.update_s + line.exposed_s));
    hidden += line.exposed_s < line.wire_s;
  }
  CHECK(hidden > 50);
}

TEST_CASE("a step on a cluster: what hides, what does not, and what shards change") {
  config::Config config = test::small_config();
  config.train.global_batch = 16;
  const ClusterDescription p = racks();
  const auto step_of = [&](const config::Config& c, const ClusterDescription& platform, int per_node) {
    RankPlace place{.cluster_sizes = {4}};
    place.ranks_on_node = per_node;
    return predict_step(plan_briefly(c, platform.nodes * per_node, place), rates_of(platform.die, DType::kF32),
                        platform, 4);
  };
  const ClusterStep one = step_of(config, racks(1), 1);
  CHECK(one.exposed_s == 0);
  CHECK(one.total_s == Approx(one.compute_s + one.weights_s + one.update_s));
  // A die of 10^12 FLOP/s, and an update of 36 bytes per parameter at 72 GB/s.
  const StepWork work = work_of(plan_briefly(config, 1, {.cluster_sizes = {4}}));
  CHECK(one.compute_s == Approx((work.gemm_flop + 6 * work.attention_macs) / 1e12));
  CHECK(one.update_s == Approx(work.parameters * 0.5e-9));
  const ClusterStep eight = step_of(config, p, 1);
  CHECK(eight.compute_s == Approx(one.compute_s / 8));
  CHECK(eight.exposed_s > 0);
  CHECK(eight.total_s == Approx(eight.compute_s + eight.weights_s + eight.update_s + eight.exposed_s));
  CHECK(eight.exposed_s < eight.wire_s + 1e-9);
  ClusterDescription fast = p;
  for (TreeLevel& level : fast.tree) level.gbit_per_s *= 1000, level.latency_us = 0;
  CHECK(step_of(config, fast, 1).exposed_s < eight.exposed_s / 10);
  config.dist.adaln = config::AdalnExchange::kReduce;
  const ClusterStep sums = step_of(config, p, 1);
  config.dist.shard_optimizer = true;
  const ClusterStep shards = step_of(config, p, 1);
  CHECK(shards.update_s == Approx(eight.update_s / 8));
  CHECK(shards.wire_s == Approx(1.5 * sums.wire_s).epsilon(0.02));  // sums made whole, then new weights
  config.dist.shard_optimizer = false, config.dist.wire = DType::kBF16;
  CHECK(step_of(config, p, 1).wire_s < 0.6 * sums.wire_s);
}

TEST_CASE("a step on a cluster: flat sums cost what they are, and outer steps a share") {
  config::Config config = test::small_config();
  config.train.global_batch = 16, config.dist.adaln = config::AdalnExchange::kReduce;
  const ClusterDescription p = racks();
  const auto step_of = [&](int per_node) {
    RankPlace place{.cluster_sizes = {4}};
    place.ranks_on_node = per_node;
    return predict_step(plan_briefly(config, p.nodes * per_node, place), rates_of(p.die, DType::kF32), p, 4);
  };
  nn::Model model(config.model);
  const double bytes = double(model.parameters().arena_size()) * sizeof(float);  // one bucket
  const ClusterStep plain = step_of(1), pairs = step_of(2);
  config.dist.allreduce = config::AllReduce::kFlat;
  const ClusterStep flat = step_of(1);
  CHECK(flat.wire_s == Approx(NetworkTime(p, 1).flat_allreduce(bytes).wire_s));
  CHECK(flat.total_s - plain.total_s == Approx(flat.wire_s - plain.wire_s));
  config.dist.allreduce = config::AllReduce::kHierarchical;

  // One rank per node: 2/3 of the 11 passes write the outer gradient or apply it to b, u, w and the EMA.
  config.dist.outer = optim::OuterConfig{.every = 10, .groups = 8};
  const ClusterStep outer = step_of(1);
  const double sum_s = NetworkTime(p, 1).allreduce(bytes).total_s();
  const double alone_s = outer.compute_s + outer.weights_s + outer.update_s;
  REQUIRE(outer.outer);
  CHECK(outer.outer->exposed_s == Approx(sum_s));
  CHECK(outer.outer->passes_s == Approx(outer.update_s * 11 / 9));
  CHECK(outer.exposed_s == Approx(sum_s / 10));
  CHECK(outer.total_s == Approx(alone_s + (sum_s + outer.update_s * 11 / 9) / 10));
  config.dist.outer->overlap = true;
  const ClusterStep hidden = step_of(1);
  CHECK(hidden.outer->exposed_s == Approx(std::max(0.0, sum_s - 10 * alone_s)));
  CHECK(hidden.outer->passes_s == Approx(outer.update_s * 15 / 9));
  config.optimizer.kind = optim::Kind::kMuon;  // whose products outer steps do not repeat
  CHECK(step_of(1).update_s > 1.1 * hidden.update_s);
  CHECK(step_of(1).outer->passes_s == Approx(hidden.outer->passes_s));
  config.optimizer.kind = optim::Kind::kAdamW;
  config.dist.outer->every = 1000000;
  CHECK(step_of(1).exposed_s == 0);
  CHECK(step_of(1).total_s == Approx(alone_s).epsilon(1e-5));
  config.dist.outer = optim::OuterConfig{.every = 10, .groups = 8};
  config.dist.wire = DType::kBF16;
  CHECK(step_of(1).outer->wire_s == Approx(0.5 * outer.outer->wire_s).epsilon(0.01));
  config.dist.wire = DType::kF32;

  // Pairs sum in their node at every step, over all ranks at outer steps.
  const ClusterStep in_nodes = step_of(2);
  CHECK(in_nodes.outer->exposed_s == Approx(NetworkTime(p, 2).allreduce(bytes).total_s()));
  CHECK(in_nodes.wire_s == Approx(in_nodes.outer->wire_s / 10));
  CHECK(in_nodes.exposed_s > in_nodes.outer->exposed_s / 10);
  CHECK(in_nodes.exposed_s < pairs.exposed_s);
}
