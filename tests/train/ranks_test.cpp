// Training steps of several ranks: when weights are updated, and what a bad step leaves.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "ditrain/plan/automem_plan.hpp"
#include "small_run.hpp"

using namespace ditrain;
using namespace ditrain::test;

namespace {

/// Several buckets per step.
config::Config ranks_config() {
  config::Config c = small_config();
  c.dist.bucket_mib = 0.03;
  return c;
}

}  // namespace

TEST_CASE("weights that are updated bucket by bucket have the bits of those updated at the end") {
  config::Config early = ranks_config();
  early.train.precision = GENERATE(DType::kF32, DType::kBF16);
  early.dist.allreduce = GENERATE(config::AllReduce::kFlat, config::AllReduce::kHierarchical);
  config::Config late = early, in_passing = early;
  late.train.on_non_finite = config::OnNonFinite::kSkip;
  in_passing.dist.engine = false;
  if (GENERATE(true, false)) early.dist.adaln = late.dist.adaln = config::AdalnExchange::kReduce;
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks, early.dist.allreduce, early.train.precision);
    const auto want = train_on({.ranks = ranks, .ranks_per_node = ranks}, late, 3);
    const auto got = train_on({.ranks = ranks, .ranks_per_node = ranks}, early, 3);
    for (size_t rank = 0; rank < got.size(); ++rank) {
      // One rank updates in backward, and adds up the norm in that order.
      CHECK(got[rank].difference(want[rank]) == (ranks == 1 ? "norms " : ""));
      for (size_t i = 0; i < 3; ++i) CHECK(got[rank].norms[i] == Approx(want[rank].norms[i]).epsilon(1e-12));
      CHECK(got[rank].values == got[0].values);
      CHECK(got[rank].copy_is_right);
    }
    const auto passing = train_on({.ranks = ranks, .ranks_per_node = ranks}, in_passing, 3);
    if (ranks == 2 && early.dist.adaln == config::AdalnExchange::kReduce)
      CHECK(passing[0].values == want[0].values);  // two terms have one sum
    CHECK(want[0].losses[0] != want[0].losses[2]);
  }
}

TEST_CASE(
    "dist.adaln: factors of all ranks make the gradients that sums of matrices make, the same bits on all ranks") {
  config::Config reduce = ranks_config();
  reduce.train.global_batch = 12;
  // Half of the 16 combinations: every one of any three settings.
  const int micro = GENERATE(0, 1);
  const int rounded = GENERATE(0, 1);
  const int clipped = GENERATE(0, 1);
  reduce.train.micro_batch = micro;
  reduce.train.precision = rounded ? DType::kBF16 : DType::kF32;
  reduce.optimizer.clip_norm = clipped ? 0.05 : 0;
  reduce.dist.allreduce = (micro + rounded + clipped) % 2 ? config::AllReduce::kFlat : config::AllReduce::kHierarchical;
  CAPTURE(reduce.train.micro_batch, reduce.train.precision, reduce.optimizer.clip_norm, reduce.dist.allreduce);
  reduce.dist.adaln = config::AdalnExchange::kReduce;
  config::Config factors = reduce, sharded = reduce;
  factors.dist.adaln = config::AdalnExchange::kFactors;
  sharded.dist.adaln = config::AdalnExchange::kAuto, sharded.dist.shard_optimizer = true;
  for (const auto& [r, per_node] : {std::pair{1, 1}, {2, 2}, {2, 1}, {3, 2}, {4, 4}}) {
    const int ranks = r, ranks_per_node = per_node;
    CAPTURE(ranks, ranks_per_node);
    const auto run = [&](const config::Config& config) {
      return train_on({.ranks = ranks, .ranks_per_node = ranks_per_node}, config, 2);
    };
    const auto want = run(reduce), got = run(factors), of_shards = run(sharded);
    const std::vector<float>&a = want[0].states[1], &b = got[0].states[1];  // the first moment: gradients
    float largest = 0, difference = 0;
    for (size_t i = 0; i < a.size(); ++i)
      largest = std::max(largest, std::fabs(a[i])), difference = std::max(difference, std::fabs(a[i] - b[i]));
    CHECK(largest > 1e-4f);
    // The second step starts from weights whose last bits differ, which bf16 rounds to others now and then.
    CHECK(difference <= largest * (reduce.train.precision == DType::kF32 ? 1e-5f : 1e-2f));
    CHECK((difference == 0) == (ranks == 1));  // one rank has nothing to gather; more add in another order
    for (size_t rank = 0; rank < got.size(); ++rank) {
      CHECK(got[rank].difference(got[0]) == "");
      CHECK(of_shards[rank].difference(got[0]) == "");
      CHECK(got[rank].norms[0] == Approx(want[rank].norms[0]).epsilon(1e-5));
      CHECK(got[rank].losses[1] == Approx(want[rank].losses[1]).epsilon(1e-4));
      CHECK(got[rank].copy_is_right);
    }
  }
}

TEST_CASE("a bad step spoils weights only where they are updated early, on all ranks, and says so") {
  config::Config config = ranks_config();
  const auto poison = [](int rank, dataset::Batch& batch) {
    if (rank == 1) batch.images[5] = std::numeric_limits<float>::infinity();
  };
  nn::Model model(config.model);
  const std::vector<float> start = to_vector(random_weights(model));
  SECTION("early: the end of the run") {
    for (const RankOutcome& rank : train_on({.ranks = 2, .ranks_per_node = 2}, config, 1, poison)) {
      CHECK(rank.spoilt);
      CHECK(rank.non_finite == "input image");
      CHECK(rank.values != start);
    }
    CHECK_THROWS_AS(train_on({.ranks = 2, .ranks_per_node = 2}, config, 2, poison), LogicFault);
  }
  SECTION("late") {
    config.train.on_non_finite = GENERATE(config::OnNonFinite::kSkip, config::OnNonFinite::kStop);
    config.optimizer.clip_norm = config.train.on_non_finite == config::OnNonFinite::kStop ? 1 : 0;
    for (const RankOutcome& rank : train_on({.ranks = 2, .ranks_per_node = 2}, config, 2, poison)) {
      CHECK_FALSE(rank.spoilt);
      CHECK(rank.non_finite == "input image");
      CHECK(rank.values == start);
    }
  }
  SECTION("one rank changes nothing after a loss that is not finite") {
    const auto own = [](int, dataset::Batch& batch) { batch.images[5] = std::numeric_limits<float>::infinity(); };
    for (const RankOutcome& rank : train_on({.ranks = 1, .ranks_per_node = 1}, config, 1, own)) {
      CHECK_FALSE(rank.spoilt);
      CHECK(rank.values == start);
    }
  }
}

TEST_CASE("a finite gradient whose square would overflow is the same finding on all ranks") {
  config::Config config = flow_config();
  config.dist.bucket_mib = 0.03;
  config.dist.shard_optimizer = GENERATE(false, true);
  config.optimizer.kind = GENERATE(optim::Kind::kAdamW, optim::Kind::kMuon);
  config.optimizer.clip_norm = GENERATE(0.0, 1.0);
  config.train.on_non_finite = GENERATE(config::OnNonFinite::kSkip, config::OnNonFinite::kStop);
  CAPTURE(config.dist.shard_optimizer, config.optimizer.kind, config.optimizer.clip_norm, config.train.on_non_finite);
  const bool clips = config.optimizer.clip_norm > 0;
  const bool early = !clips && config.train.on_non_finite == config::OnNonFinite::kStop;
  const auto huge = [](int rank, dataset::Batch& batch) {
    if (rank == 1) batch.images[5] = 1e30f;
  };
  nn::Model model(config.model);
  const std::vector<float> start = to_vector(random_weights(model));
  for (const RankOutcome& rank : train_on({.ranks = 2, .ranks_per_node = 2}, config, 1, huge)) {
    CHECK(rank.non_finite == (clips ? "" : "gradient norm (overflow)"));
    CHECK((std::isfinite(rank.norms[0]) && rank.norms[0] > 1e20));
    CHECK(rank.spoilt == early);
    CHECK((rank.values == start) == (!clips && !early));
    if (early) continue;
    for (const std::vector<float>& state : rank.states)
      CHECK(std::all_of(state.begin(), state.end(), [](float x) { return std::isfinite(x); }));
  }
}

TEST_CASE("dist.reproducible: 1, 2 and 4 ranks, on one node or on several, give the same bits") {
  config::Config config = ranks_config();
  config.dist.reproducible = true;
  config.train.global_batch = 8;
  config.train.micro_batch = GENERATE(1, 2);
  config.train.precision = GENERATE(DType::kF32, DType::kBF16);
  config.optimizer.clip_norm = GENERATE(0.0, 0.05);
  CAPTURE(config.train.micro_batch, config.train.precision, config.optimizer.clip_norm);
  const RankOutcome want = train_on({.ranks = 1, .ranks_per_node = 1}, config, 3)[0];
  CHECK(want.losses[0] != want.losses[2]);
  for (const auto& [ranks, ranks_per_node] : {std::pair{2, 2}, {2, 1}, {4, 4}, {4, 2}, {4, 1}}) {
    CAPTURE(ranks, ranks_per_node);
    for (const RankOutcome& got : train_on({.ranks = ranks, .ranks_per_node = ranks_per_node}, config, 3))
      CHECK(got.difference(want) == "");
  }
  config.dist.reproducible = false;
  // Without the tree bits differ, except with one leaf per rank, whose order is that of a single rank.
  if (config.train.micro_batch == 1)
    CHECK(train_on({.ranks = 4, .ranks_per_node = 4}, config, 3)[0].values !=
          train_on({.ranks = 1, .ranks_per_node = 1}, config, 3)[0].values);
}

TEST_CASE("dist.reproducible with routes: the same tokens stay on any number of ranks") {
  config::Config config = ranks_config();
  config.dist.reproducible = true;
  config.train.global_batch = 4, config.train.micro_batch = 1;
  config.train.routing = {{0.5, 1, 1}};
  const RankOutcome want = train_on({.ranks = 1, .ranks_per_node = 1}, config, 2)[0];
  for (const RankOutcome& got : train_on({.ranks = 4, .ranks_per_node = 2}, config, 2))
    CHECK(got.difference(want) == "");
  config.train.routing.clear();
  CHECK(train_on({.ranks = 1, .ranks_per_node = 1}, config, 1)[0].losses[0] != want.losses[0]);
}

TEST_CASE("dist.reproducible: a number of leaves that is no power of two, and one leaf per rank") {
  config::Config config = ranks_config();
  config.dist.reproducible = true;
  config.train.global_batch = 6;
  config.train.micro_batch = 1;
  const RankOutcome six = train_on({.ranks = 1, .ranks_per_node = 1}, config, 2)[0];
  CHECK(train_on({.ranks = 2, .ranks_per_node = 2}, config, 2)[1].difference(six) == "");
  config.train.global_batch = 4;
  const RankOutcome four = train_on({.ranks = 1, .ranks_per_node = 1}, config, 2)[0];
  CHECK(train_on({.ranks = 4, .ranks_per_node = 4}, config, 2)[3].difference(four) == "");
}

TEST_CASE("dist.shard_optimizer: the bits of whole states on every rank, for a part of their memory") {
  config::Config config = ranks_config();
  config.dist.bucket_mib = 0.2;  // several pieces each
  config.model.hidden_size = 64;
  config.train.global_batch = 12;
  config.optimizer.clip_norm = GENERATE(0.0, 0.05);
  config.ema.snapshots_every = 5;  // power averages are shards, too
  config.dist.allreduce = GENERATE(config::AllReduce::kHierarchical, config::AllReduce::kFlat);
  config.train.precision = GENERATE(DType::kF32, DType::kBF16);
  CAPTURE(config.optimizer.clip_norm, config.dist.allreduce, config.train.precision);
  config::Config sharded = config;
  sharded.dist.shard_optimizer = true;
  for (const auto& [ranks, ranks_per_node] : {std::pair{1, 1}, {2, 1}, {3, 3}, {3, 2}}) {
    CAPTURE(ranks, ranks_per_node);
    const auto want = train_on({.ranks = ranks, .ranks_per_node = ranks_per_node}, config, 2);
    const auto got = train_on({.ranks = ranks, .ranks_per_node = ranks_per_node}, sharded, 2);
    int64_t elements = 0;
    for (size_t rank = 0; rank < got.size(); ++rank) {
      CHECK(got[rank].difference(want[rank]) == "");
      CHECK(got[rank].copy_is_right);
      if (ranks > 1) CHECK(got[rank].state_elements < want[rank].state_elements);
      elements += got[rank].state_elements;
    }
    CHECK(elements == want[0].state_elements);
    CHECK(want[0].states[0] != want[0].values);
  }
}

TEST_CASE("memory.automem on ranks with whole states: buckets end within segments, to the same bits") {
  config::Config config = ranks_config();
  config.model.qk_norm = nn::QkNorm::kLayer;
  config.model.hidden_size = 128, config.model.depth = 2;
  nn::Model model(config.model);
  const autograd::ParameterStore& layout = model.parameters();
  plan::GradientPlan gradients;
  const auto any_ends_between_vectors = [&] {  // which move as one
    for (const autograd::ArenaSlice& s : layout.segments())
      for (int64_t k = 0; k < gradients.buckets.size(); ++k)
        if (const int64_t begin = gradients.buckets[k].begin; s.begin < begin && begin < s.end)
          if (layout.at(begin).name != layout.at(s.begin).name) return true;
    return false;
  };
  config.dist.bucket_mib = 0.004;  // some 1,024 elements
  do {
    config.dist.bucket_mib += 0.0001;
    REQUIRE(config.dist.bucket_mib < 0.02);
    gradients = plan::plan_gradients(config, model.parameters(), 2);
  } while (!any_ends_between_vectors());
  const auto want = train_on({.ranks = 2, .ranks_per_node = 2}, config, 3);
  REQUIRE(gradients.updates_early);
  const int64_t samples = config.train.global_batch / 2;
  const automem::Uses uses = plan::record_step(config, gradients, samples, samples);
  config.memory.fast_gib = (double(plan::fixed_fast_bytes(config, gradients, samples) + uses.small_bytes) +
                            0.5 * double(uses.total_bytes())) /
                           0x1p30;
  config.memory.tier_gib = {0.0, 1.0};
  for (const config::AutoMem automem : {config::AutoMem::kPaper, config::AutoMem::kPlanned}) {
    config.memory.automem = automem;
    const auto got = train_on({.ranks = 2, .ranks_per_node = 2}, config, 3);
    for (size_t rank = 0; rank < got.size(); ++rank) {
      CHECK(got[rank].difference(want[rank]) == "");
      CHECK(got[rank].moved_in > 0);
    }
  }
}

TEST_CASE("dist.shard_optimizer with memory.automem: shards move between tiers, to the same bits") {
  config::Config config = ranks_config();
  config.dist.bucket_mib = 0.5;  // segments lie in several buckets, and buckets have several segments
  config.model.input_height = config.model.input_width = 16;
  config.model.hidden_size = 128, config.model.depth = 2;
  const bool clips = GENERATE(false, true);
  config.optimizer.clip_norm = clips ? 0.05 : 0.0;  // buckets are updated when they arrive, or all at the end
  config.train.precision = clips ? DType::kBF16 : DType::kF32;
  config.dist.shard_optimizer = true;
  for (const int ranks : {1, 2, 3}) {
    config.train.global_batch = 12;
    const auto want = train_on({.ranks = ranks, .ranks_per_node = ranks}, config, 3);
    config::Config moving = config;
    nn::Model model(config.model);
    const plan::GradientPlan gradients = plan::plan_gradients(config, model.parameters(), ranks);
    const int64_t samples = config.train.global_batch / ranks;
    const size_t fixed = plan::fixed_fast_bytes(config, gradients, samples),
                 moves = plan::record_step(config, gradients, samples, samples).total_bytes();
    moving.memory.fast_gib = (double(fixed) + 0.5 * double(moves)) / 0x1p30;
    struct Way {
      config::AutoMem automem;
      bool is_disk;  // of which nothing is used in place; of the other tier a plan may use all
      memory::CopyBy by;
    };
    for (const Way& way : {Way{config::AutoMem::kPaper, true, memory::CopyBy::kThreads},
                           Way{config::AutoMem::kPlanned, true, memory::CopyBy::kThreads},
                           Way{config::AutoMem::kPaper, false, memory::CopyBy::kWorkers},
                           Way{config::AutoMem::kPlanned, false, memory::CopyBy::kThreads},
                           Way{config::AutoMem::kPlanned, false, memory::CopyBy::kWorkers}}) {
      CAPTURE(config.optimizer.clip_norm, config.train.precision, ranks, way.automem, way.is_disk, way.by);
      moving.memory.automem = way.automem;
      moving.memory.tier_gib = {way.is_disk ? 0.0 : 1.0, way.is_disk ? 1.0 : 0.0};
      const auto got = train_on({.ranks = ranks, .ranks_per_node = ranks}, moving, 3, {}, way.by);
      for (size_t rank = 0; rank < got.size(); ++rank) {
        CHECK(got[rank].difference(want[rank]) == "");
        CHECK(got[rank].copy_is_right);
        if (way.is_disk || way.automem == config::AutoMem::kPaper) CHECK(got[rank].moved_in > 0);
      }
    }
  }
}

TEST_CASE("dist.shard_optimizer with dist.reproducible, and after steps that are left out") {
  config::Config config = ranks_config();
  config.dist.bucket_mib = 0.2;
  config.train.global_batch = 8, config.train.micro_batch = 2;
  config.dist.reproducible = true;
  const RankOutcome want = train_on({.ranks = 1, .ranks_per_node = 1}, config, 2)[0];
  config.dist.shard_optimizer = true;
  for (const int ranks_per_node : {1, 2, 4})
    for (const RankOutcome& got : train_on({.ranks = 4, .ranks_per_node = ranks_per_node}, config, 2))
      CHECK(got.difference(want) == "");
  const auto overflow = [](int rank, dataset::Batch& batch) {
    if (rank == 3) batch.images[7] = 3e38f;
  };
  config.train.on_non_finite = GENERATE(config::OnNonFinite::kSkip, config::OnNonFinite::kStop);
  const auto bad = train_on({.ranks = 4, .ranks_per_node = 4}, config, 1, overflow);
  for (const RankOutcome& rank : bad) {
    CHECK_FALSE(rank.non_finite.empty());
    CHECK(rank.non_finite == bad[0].non_finite);
    CHECK(rank.spoilt == (config.train.on_non_finite == config::OnNonFinite::kStop));
  }
}
