#include "ditrain/plan/gradient_plan.hpp"

#include <catch2/catch.hpp>

#include "ditrain/nn/model.hpp"
#include "support/small_config.hpp"

using namespace ditrain;
using namespace ditrain::test;

TEST_CASE("dist.adaln: auto takes the factors of layers where they move fewer bytes") {
  config::Config config = small_config();  // width 32: blocks have 192 x 32, the final layer 64 x 32
  nn::Model model(config.model);
  const auto layers = [&](int64_t global_batch, int replicas) {
    config.train.global_batch = global_batch;
    return plan::plan_gradients(config, model.parameters(), replicas).factors.size();
  };
  CHECK(layers(21, 2) == 4);  // 21 (64 + 32) <= 64 32
  CHECK(layers(22, 2) == 3);
  CHECK(layers(27, 2) == 3);  // 27 (192 + 32) <= 192 32
  CHECK(layers(28, 2) == 0);
  CHECK(layers(4, 1) == 0);
  const auto described = [&](int replicas) {
    return plan::describe_factors(plan::plan_gradients(config, model.parameters(), replicas), config);
  };
  CHECK(described(1) == "");
  config.train.global_batch = 16;
  // (2 - 1) / 2 of 16 x (3 x 224 + 96) and twice that of 3 x (192 x 32 + 192) + 64 x 32 + 64 elements.
  CHECK(described(2) ==
        "adaLN gradients of 4 layers: ranks gather the factors of 16 samples, 24.0 KiB per rank and step instead of "
        "82.5 KiB");
  config.dist.reproducible = true;
  CHECK(layers(4, 2) == 0);
  config.dist.reproducible = false, config.dist.engine = false;
  CHECK(layers(4, 2) == 0);
  config.dist.engine = true, config.dist.adaln = config::AdalnExchange::kReduce;
  CHECK(layers(4, 2) == 0);
}

TEST_CASE("updates: groups cover the arena from its end, and no piece is empty") {
  config::Config config = small_config();
  nn::Model model(config.model);
  const int64_t n = model.parameters().arena_size();
  config.dist.bucket_mib = 0.004;  // 1,024 elements: many shards of them are empty
  for (const int replicas : {1, 2, 3})
    for (const bool shards : {false, true})
      for (int rank = 0; rank < replicas; ++rank) {
        config.dist.shard_optimizer = shards;
        config.optimizer.clip_norm = rank;  // one replica: 0, so that the groups are nodes
        config.train.global_batch = 6;
        CAPTURE(replicas, shards, rank);
        const plan::GradientPlan plan = plan::plan_gradients(config, model.parameters(), replicas, rank);
        const plan::UpdateSchedule updates = plan::schedule_updates(plan, model.parameters());
        int64_t end = n, pieces = 0, size = 0;
        for (const plan::UpdateGroup& group : updates.groups) {
          CHECK(group.arena.end == end);
          end = group.arena.begin;
          size += int64_t(group.pieces.size() + group.taken.size());
          for (const autograd::ArenaSlice& piece : group.pieces) {
            CHECK(piece.begin < piece.end);
            pieces += piece.end - piece.begin;
          }
        }
        CHECK(end == 0);
        CHECK(size == updates.size);
        CHECK(pieces == plan.state_elements());
        CHECK(plan.state_elements() <= plan.most_state_elements());
      }
}

TEST_CASE("updates on one replica: neighbouring small buckets change together, the grid of buckets stays") {
  config::Config config;
  config.optimizer.clip_norm = 1;                      // no updates in backward
  config.dist.bucket_mib = 0.001;                      // 1,024 elements, the least; DiT-S/2 has 32 million
  config.dist.adaln = config::AdalnExchange::kReduce;  // no buckets for factors
  nn::Model model(config.model);
  const plan::GradientPlan plan = plan::plan_gradients(config, model.parameters(), 1);
  const plan::UpdateSchedule updates = plan::schedule_updates(plan, model.parameters());
  CHECK(plan.buckets.size() > 20000);
  CHECK(updates.groups.size() <= 4096);
  CHECK(plan.buckets.size() == plan::plan_gradients(config, model.parameters(), 2).buckets.size());
  int64_t end = model.parameters().arena_size();
  for (const plan::UpdateGroup& group : updates.groups) {
    CHECK(group.arena.end == end);
    end = group.arena.begin;
  }
  CHECK(end == 0);
}
