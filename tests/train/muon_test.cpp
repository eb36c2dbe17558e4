// Training with Muon: the same bits on all ranks, in backward or after it, and with tensors that move.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/plan/dry_run.hpp"
#include "small_run.hpp"

using namespace ditrain;
using namespace ditrain::test;
using Catch::Equals;

namespace {

config::Config muon_config() {
  config::Config config = small_config();
  config.optimizer.kind = optim::Kind::kMuon, config.optimizer.muon_lr = 0.01, config.optimizer.weight_decay = 0.1;
  config.ema.decay = 0.5;
  config.train.global_batch = 6;
  return config;
}

}  // namespace

TEST_CASE("Muon: groups of updates end where parameters do, though buckets cut them") {
  config::Config config = muon_config();
  config.dist.bucket_mib = 0.004;  // 1,024 elements
  nn::Model model(config.model);
  const autograd::ParameterStore& layout = model.parameters();
  std::set<int64_t> borders{layout.arena_size()};
  for (const autograd::Parameter* p : layout.in_arena()) borders.insert(p->slice.begin);
  for (const int replicas : {1, 2, 3}) {
    config.optimizer.clip_norm = replicas == 1 ? 1 : 0;  // groups are buckets
    const plan::GradientPlan plan = plan::plan_gradients(config, model.parameters(), replicas);
    const plan::UpdateSchedule updates = plan::schedule_updates(plan, layout);
    CHECK(int64_t(updates.groups.size()) == plan.buckets.size());
    int64_t end = layout.arena_size();
    for (size_t k = 0; k < updates.groups.size(); ++k) {
      const plan::UpdateGroup& group = updates.groups[k];
      CHECK(group.arena.end == end);
      CHECK(group.arena.begin >= plan.buckets[int64_t(k)].begin);  // what has arrived
      CHECK(borders.contains(group.arena.begin));
      for (const autograd::ArenaSlice& piece : group.pieces) CHECK(borders.contains(piece.begin));
      end = group.arena.begin;
    }
    CHECK(end == 0);
  }
}

TEST_CASE("Muon: ranks have the same bits, and those of one rank but for the order of sums") {
  config::Config config = muon_config();
  config.dist.bucket_mib = 0.01;
  config.optimizer.clip_norm = GENERATE(0.0, 0.5);
  config.train.precision = GENERATE(DType::kF32, DType::kBF16);
  CAPTURE(config.optimizer.clip_norm, config.train.precision);
  const auto one = train_on({.ranks = 1}, config, 3);
  CHECK(one[0].copy_is_right);
  for (const int ranks : {2, 3}) {
    const auto all = train_on({.ranks = ranks, .ranks_per_node = ranks}, config, 3);
    for (const RankOutcome& rank : all) {
      CHECK(rank.difference(all[0]) == "");
      CHECK(rank.copy_is_right);
    }
    CHECK(all[0].losses[2] == Approx(one[0].losses[2]).epsilon(config.train.precision == DType::kF32 ? 1e-4 : 2e-2));
  }
}

TEST_CASE("Muon with dist.shard_optimizer: each matrix is updated by one rank, to the same bits") {
  config::Config config = muon_config();
  config.dist.bucket_mib = 0.01;
  config.ema.snapshots_every = 5;
  config.optimizer.clip_norm = GENERATE(0.0, 0.5);
  config.train.precision = GENERATE(DType::kF32, DType::kBF16);
  config.dist.allreduce = GENERATE(config::AllReduce::kHierarchical, config::AllReduce::kFlat);
  CAPTURE(config.optimizer.clip_norm, config.train.precision, config.dist.allreduce);
  config::Config sharded = config;
  sharded.dist.shard_optimizer = true;
  for (const auto& [ranks, ranks_per_node] : {std::pair{2, 2}, {3, 3}, {3, 2}}) {
    CAPTURE(ranks, ranks_per_node);
    const auto want = train_on({.ranks = ranks, .ranks_per_node = ranks_per_node}, config, 3);
    const auto got = train_on({.ranks = ranks, .ranks_per_node = ranks_per_node}, sharded, 3);
    int64_t elements = 0;
    for (size_t rank = 0; rank < got.size(); ++rank) {
      // Other buckets have their squares added in another order, and the factor of clipping hangs on the norm.
      if (config.optimizer.clip_norm == 0) CHECK_THAT(got[rank].difference(want[rank]), Equals("") || Equals("norms "));
      CHECK(got[rank].difference(got[0]) == "");
      for (size_t i = 0; i < 3; ++i) {
        CHECK(got[rank].norms[i] == Approx(want[rank].norms[i]).epsilon(1e-6));
        CHECK(got[rank].losses[i] == Approx(want[rank].losses[i]).epsilon(1e-6));
      }
      CHECK(got[rank].copy_is_right);
      elements += got[rank].state_elements;
    }
    CHECK(elements == want[0].state_elements);
  }
}

TEST_CASE("Muon with dist.shard_optimizer: bf16 between nodes rounds alike, though the buckets are others") {
  config::Config config = muon_config();
  config.dist.bucket_mib = 0.01, config.dist.wire = DType::kBF16;
  config::Config sharded = config;
  sharded.dist.shard_optimizer = true;
  for (const auto& [ranks, ranks_per_node] : {std::pair{2, 1}, {3, 2}, {3, 1}}) {
    CAPTURE(ranks, ranks_per_node);
    const auto want = train_on({.ranks = ranks, .ranks_per_node = ranks_per_node}, config, 3);
    const auto got = train_on({.ranks = ranks, .ranks_per_node = ranks_per_node}, sharded, 3);
    for (size_t rank = 0; rank < got.size(); ++rank)
      CHECK_THAT(got[rank].difference(want[rank]), Equals("") || Equals("norms "));  // added in another order
  }
}

TEST_CASE("Muon with dist.shard_optimizer: ranks get matrices of about the same work") {
  config::Config config = muon_config();
  config.dist.shard_optimizer = true;
  config.model.depth = 6;
  nn::Model model(config.model);
  const auto cost = [&](const autograd::Parameter& p) {
    return optim::algorithm_of(config.optimizer).whole_cost(p, config.train.precision);
  };
  for (const int ranks : {2, 4}) {
    std::vector<double> work;
    int64_t most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const plan::GradientPlan plan = plan::plan_gradients(config, model.parameters(), ranks, rank);
      double mine = 0;
      for (const autograd::Parameter* p : model.parameters().in_arena()) {
        int64_t held = 0;
        for (const autograd::ArenaSlice& part : plan.state_parts())
          held += std::max<int64_t>(0, std::min(part.end, p->slice.end) - std::max(part.begin, p->slice.begin));
        if (cost(*p) > 0) CHECK((held == 0 || held == p->slice.size()));
        if (held > 0) mine += cost(*p);
      }
      work.push_back(mine), most = std::max(most, plan.state_elements());
    }
    const auto [least, greatest] = std::minmax_element(work.begin(), work.end());
    CHECK(*least > 0.8 * *greatest);
    // The norm adds up bucket by bucket, on one rank too (dist.reproducible).
    config::Config exact = config;
    exact.dist.adaln = config::AdalnExchange::kReduce;  // as with dist.reproducible: no buckets for factors
    const dist::BucketGrid alone = plan::plan_gradients(exact, model.parameters(), 1).buckets,
                           together = plan::plan_gradients(exact, model.parameters(), ranks).buckets;
    REQUIRE(alone.size() == together.size());
    for (int64_t k = 0; k < alone.size(); ++k)
      CHECK((alone[k].begin == together[k].begin && alone[k].end == together[k].end));
    CHECK(plan::plan_gradients(config, model.parameters(), ranks).most_state_elements() == most);
  }
}

TEST_CASE("Muon: updates in backward are those after it, bit for bit") {
  config::Config config = muon_config();
  const RankOutcome in_backward = train_on({.ranks = 1}, config, 3)[0];
  config.train.on_non_finite = config::OnNonFinite::kSkip;
  const RankOutcome after = train_on({.ranks = 1}, config, 3)[0];
  CHECK(after.difference(in_backward) == "norms ");  // whose sums have another order
  for (size_t i = 0; i < 3; ++i) CHECK(after.norms[i] == Approx(in_backward.norms[i]).epsilon(1e-12));
}

TEST_CASE("Muon with memory.automem: a matrix's arrays are in place at once, to the same bits") {
  config::Config config = muon_config();
  config.model.hidden_size = 128, config.model.depth = 2;
  config.optimizer.clip_norm = GENERATE(0.0, 0.5);
  config.train.precision = GENERATE(DType::kF32, DType::kBF16);
  for (const int ranks : {1, 2}) {
    config.dist.shard_optimizer = ranks > 1;
    const auto want = train_on({.ranks = ranks, .ranks_per_node = ranks}, config, 3);
    config::Config moving = config;
    nn::Model model(config.model);
    const plan::GradientPlan gradients = plan::plan_gradients(config, model.parameters(), ranks);
    const int64_t samples = config.train.global_batch / ranks;
    const automem::Uses uses = plan::record_step(config, gradients, samples, samples);
    for (const automem::Point& point : uses.points) {
      if (point.phase != automem::Phase::kUpdate || point.name != "blocks.1.mlp.fc1.weight") continue;
      std::string names;
      for (const int id : point.uses) names += uses.tensors[size_t(id)].name + "\n";
      const std::string of = " of blocks.1.mlp.fc1.weight\n";
      const bool copy = config.train.precision == DType::kBF16;
      CHECK(names == "weights" + of + "momentum" + of + "ema" + of + (copy ? "bf16 weights" + of : ""));
    }
    moving.memory.fast_gib = (double(plan::fixed_fast_bytes(config, gradients, samples) + uses.small_bytes) +
                              0.5 * double(uses.total_bytes())) /
                             0x1p30;
    moving.memory.tier_gib = {0.0, 1.0};
    for (const config::AutoMem automem : {config::AutoMem::kPaper, config::AutoMem::kPlanned}) {
      CAPTURE(ranks, automem, config.train.precision);
      moving.memory.automem = automem;
      const auto got = train_on({.ranks = ranks, .ranks_per_node = ranks}, moving, 3);
      for (size_t rank = 0; rank < got.size(); ++rank) {
        CHECK(got[rank].difference(want[rank]) == "");
        CHECK(got[rank].copy_is_right);
        CHECK(got[rank].moved_in > 0);
      }
    }
  }
}

TEST_CASE("Muon: the loss of one batch falls") {
  config::Config config = muon_config();
  config.train.precision = GENERATE(DType::kF32, DType::kBF16);
  const auto outcome = train_on({.ranks = 1}, config, 30);
  CHECK(outcome[0].non_finite.empty());
  const auto mean = [&](size_t first) {
    double sum = 0;
    for (size_t i = first; i < first + 5; ++i) sum += outcome[0].losses[i];
    return sum / 5;
  };
  CHECK(mean(25) < 0.9 * mean(0));
}

TEST_CASE("Muon: the memory plan has what its arrays and its workspace take") {
  config::Config config = muon_config();
  const auto bytes_of = [&](const std::string& name) {
    for (const plan::MemoryItem& item : plan::plan_run(config, 1).memory.items)
      if (item.name == name) return item.bytes;
    return size_t{0};
  };
  nn::Model model(config.model);
  model.parameters().allocate(autograd::ParameterStore::For::kTraining, DType::kF32,
                              {.states = optim::state_arrays(config.optimizer, config.ema)});
  size_t kept = 0;
  for (const autograd::OptimizerState& state : model.parameters().states) kept += state.data.bytes();
  CHECK(bytes_of("optimiser state") == kept);
  // Two matrices of 128 x 32 and three of 32 x 32.
  CHECK(bytes_of("optimiser workspace") == (2 * 128 * 32 + 2 * 32 * 32) * sizeof(float));
  config.optimizer.kind = optim::Kind::kAdamW;
  CHECK(bytes_of("optimiser state") > kept);
  CHECK(bytes_of("optimiser workspace") == 0);
}

TEST_CASE("Muon without a matrix of a block is refused") {
  const config::Config config = muon_config();
  nn::Model model(config.model);
  for (autograd::Parameter* p : model.parameters().state_dict()) p->group = autograd::ParameterGroup::kOther;
  CHECK_THROWS_AS(plan::plan_gradients(config, model.parameters(), 1), InputError);
}
