#include "ditrain/plan/dry_run.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "platform/synthetic.hpp"
#include "support/message_of.hpp"
#include "support/small_config.hpp"

using namespace ditrain;
using ditrain::test::message_of;

namespace {

config::Config config_of_two_clusters() {
  config::Config config = test::small_config();
  config.model.num_classes = 0;  // as many as any data have
  config.parallel.threads = config.parallel.clusters = 2;
  return config;
}

/// All that a plan says, as text.
std::string text_of(const plan::RunPlan& p) {
  return fmt::format("{} ranks, {} replicas, {} samples by {}, {} buckets, {} of the state, {}\n", p.world_size,
                     p.replicas, p.samples, p.micro_batch, p.gradients.buckets.size(), p.gradients.state_elements(),
                     p.place.ranks_on_node) +
         fmt::format("clusters {} on nodes {}; ", fmt::join(p.place.cluster_sizes, " "),
                     fmt::join(p.place.nodes, " ")) +
         p.cut.why + "\n" + describe_factors(p.gradients, p.config) + "\n" + describe(p.memory);
}

}  // namespace

TEST_CASE("a dry run has the plan that a run on these ranks makes") {
  config::Config config = config_of_two_clusters();
  if (GENERATE(false, true)) {
    config.model.qk_norm = nn::QkNorm::kRms, config.model.norm = nn::Norm::kRms;
    config.model.mlp = nn::Mlp::kSwiglu, config.model.position = nn::Position::kRope;
    config.model.patch_overlap = 1, config.model.patch_bottleneck = 8;
  }
  const auto comm = dist::make_null_communicator();
  const plan::DryRun dry = plan::plan_dry_run(config, 0, *comm);
  const plan::Placement placement = plan::plan_placement(config, *comm);
  CHECK(text_of(dry.plan) == text_of(plan::plan_run(config, 1, plan::place_of(placement, comm->local_size()))));
  CHECK(dry.plan.place.cluster_sizes == std::vector<int>{1, 1});
  CHECK_THAT(dry.placement, Catch::StartsWith(describe(placement, *comm)));
}

TEST_CASE("a dry run of ranks on another machine has the plan of a run there") {
  const platform::ScopedVariable other("HWLOC_SYNTHETIC", "package:2 die:2 numa:4 core:38 pu:1");
  config::Config config = config_of_two_clusters();
  config.parallel.threads = config.parallel.clusters = 0;
  config.dist.shard_optimizer = true;
  const auto comm = dist::make_null_communicator();
  const plan::RunPlan dry = plan::plan_dry_run(config, 4, *comm).plan;
  CHECK(dry.place.cluster_sizes.size() == 4);
  CHECK(dry.place.nodes.size() == 4);
  CHECK(dry.place.ranks_on_node == 1);  // the memory of such a node is not known
  CHECK(text_of(dry) == text_of(plan::plan_run(config, 4, dry.place)));
  CHECK((dry.world_size == 4 && dry.replicas == 4 && dry.samples == 1));
}

TEST_CASE("a dry run settles how many ranks share a replica") {
  config::Config config = config_of_two_clusters();
  config.parallel = {.strategy = config::Strategy::kDpTp};
  const platform::ScopedVariable other("HWLOC_SYNTHETIC", "package:1 core:8 pu:1");
  const plan::RunPlan dry = plan::plan_dry_run(config, 4, *dist::make_null_communicator()).plan;
  CHECK((dry.config.parallel.tensor_ranks == 4 && dry.replicas == 1 && dry.samples == 4));
  CHECK_THROWS_AS(plan::plan_dry_run(config, 3, *dist::make_null_communicator()), InputError);  // 4 heads
}

TEST_CASE("outer steps: groups are nodes or simulated hosts, whose ranks alone sum gradients") {
  config::Config config = test::small_config();
  config.dist.outer = optim::OuterConfig{.overlap = true};
  const auto settled = [&](const plan::Ranks& ranks) { return plan::settle(config, {}, ranks).config; };
  CHECK(settled({4, 2}).dist.outer->groups == 2);
  CHECK(settled({4, 1}).dist.outer->groups == 4);
  const auto refused = [&](const plan::Ranks& ranks) { return message_of([&] { settled(ranks); }); };
  CHECK(refused({2, 2}) ==
        "[config] dist.outer: one node has nothing to average; got 2 rank(s) on one node, expected two nodes or more; "
        "try dist.outer: off, or, to see it on one machine, dist.simulate_link={hosts: 2} and mpirun -np 2");
  CHECK_THAT(refused({4, 3, false}), Catch::Contains("nodes have different numbers of ranks"));
  config.dist.simulate_link = dist::LinkModel{.hosts = 2};
  CHECK(settled({4, 4}).dist.outer->groups == 2);
  config.dist.simulate_link->hosts = 3;
  CHECK_THAT(refused({4, 4}),
             Catch::Contains("4 rank(s), hosts: 3, expected a multiple of the hosts; try mpirun -np 6"));

  config.dist.simulate_link.reset();
  config.optimizer.clip_norm = 1;
  config.train.global_batch = 8;
  const plan::RunPlan of_pairs = plan::plan_run(settled({4, 2}), 4, {.ranks_on_node = 2, .rank = 3});
  CHECK((of_pairs.replicas == 4 && of_pairs.gradients.replicas == 2 && of_pairs.gradients.groups == 2));
  CHECK((of_pairs.samples == 2 && of_pairs.gradients.rank == 1 && of_pairs.gradients.factors.empty()));
  config::Config plain = config;
  plain.dist.outer.reset(), plain.dist.adaln = config::AdalnExchange::kReduce;
  const auto bytes = [](const config::Config& c) { return plan::plan_run(c, 4, {.ranks_on_node = 2}).memory.total(); };
  nn::Model model(config.model);
  const size_t arena = size_t(model.parameters().arena_size()) * sizeof(float);
  plain.checkpoint.async = config.checkpoint.async = false;
  CHECK(bytes(settled({4, 2})) == bytes(plain) + 5 * arena);
  config.dist.outer->overlap = false;
  CHECK(bytes(settled({4, 2})) == bytes(plain) + 3 * arena);
}
