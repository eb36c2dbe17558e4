// Outer steps of ranks that train by themselves in between.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "ditrain/plan/automem_plan.hpp"
#include "small_run.hpp"

using namespace ditrain;
using namespace ditrain::test;

namespace {

config::Config outer_config(int every, bool overlap = false) {
  config::Config c = small_config();
  c.dist.bucket_mib = 0.03;
  c.dist.outer = optim::OuterConfig{.every = every, .overlap = overlap, .groups = 2};
  return c;
}

std::vector<RankOutcome> outcomes_of(const config::Config& c, int steps) {
  return train_on({.ranks = 2, .ranks_per_node = 1}, c, steps);
}

}  // namespace

TEST_CASE("ranks send nothing between outer steps, and have the same bits after them") {
  const int64_t bytes = int64_t(sizeof(float)) * nn::Model(small_config().model).parameters().arena_size();
  const auto before = outcomes_of(outer_config(3), 2), after = outcomes_of(outer_config(3), 3);
  CHECK(before[0].values != before[1].values);
  CHECK(before[0].bytes == std::vector<double>{0, 0});
  CHECK(after[0].values == after[1].values);
  CHECK(after[0].values != before[0].values);
  CHECK(after[0].bytes == std::vector<double>{0, 0, double(bytes)});
  CHECK(after[0].losses == after[1].losses);
  CHECK(after[0].states.front() == after[1].states.front());  // the EMA
  CHECK(before[0].states.front() == before[1].states.front());
  CHECK(after[0].states[1] != after[1].states[1]);  // moments stay with the rank
  config::Config plain = outer_config(3);
  plain.dist.outer.reset();
  plain.dist.adaln = config::AdalnExchange::kReduce;
  CHECK(outcomes_of(plain, 1)[0].bytes == std::vector<double>{double(bytes)});
}

TEST_CASE("an outer step with lr 1 and no momentum takes the mean of the weights that ranks have come to") {
  config::Config every_step = outer_config(1);
  every_step.dist.outer->lr = 1, every_step.dist.outer->momentum = 0;
  every_step.train.precision = GENERATE(DType::kF32, DType::kBF16);
  every_step.optimizer.clip_norm = GENERATE(0, 1);
  config::Config never = every_step;
  never.dist.outer->every = 5;
  const auto local = outcomes_of(never, 1), got = outcomes_of(every_step, 1);
  double most = 0, apart = 0;
  for (size_t i = 0; i < got[0].values.size(); ++i) {
    const double a = local[0].values[i], b = local[1].values[i];
    most = std::max(most, std::fabs(double(got[0].values[i]) - (a + b) / 2));
    apart = std::max(apart, std::fabs(a - b));
  }
  CHECK(apart > 1e-5);
  CHECK(most < 1e-7);
  CHECK(got[0].copy_is_right);
  CHECK(got[1].copy_is_right);
}

TEST_CASE("eager outer steps leave each rank its own weights, and all ranks those of the run") {
  const auto one = outcomes_of(outer_config(2, /*overlap=*/true), 2), two = outcomes_of(outer_config(2, true), 4);
  CHECK(one[0].published == to_vector([] {
          nn::Model model(small_config().model);
          return random_weights(model);
        }()));  // nothing has arrived
  CHECK(two[0].published == two[1].published);
  CHECK(two[0].published != one[0].published);
  CHECK(two[0].values != two[1].values);
  CHECK_THAT(two[1].unlike_as_one_group, Catch::Contains("weights of the group"));
  CHECK_THAT(two[1].unlike_as_one_group, Catch::Contains("moment"));
  CHECK(two[0].states.front() == two[1].states.front());
  CHECK(two[0].bytes[2] == 0);
  CHECK(two[0].bytes[3] > 0);
}

TEST_CASE("outer steps of weights that move between tiers give the same bits") {
  config::Config c = outer_config(2, /*overlap=*/GENERATE(false, true));
  c.model.input_height = c.model.input_width = 16;
  c.model.hidden_size = 128;  // large enough for tensors that move
  c.train.precision = GENERATE(DType::kF32, DType::kBF16);
  const auto want = outcomes_of(c, 4);
  nn::Model model(c.model);
  const plan::GradientPlan gradients = plan::plan_gradients(c, model.parameters(), 2);
  const int64_t samples = c.train.global_batch / 2;
  const automem::Uses uses = plan::record_step(c, gradients, samples, samples);
  c.memory.fast_gib =
      (double(plan::fixed_fast_bytes(c, gradients, samples) + uses.small_bytes) + 0.5 * double(uses.total_bytes())) /
      0x1p30;
  c.memory.tier_gib = {0.0, 1.0};
  c.memory.automem = config::AutoMem::kPlanned;
  const auto got = outcomes_of(c, 4);
  for (size_t rank = 0; rank < got.size(); ++rank) {
    CHECK(got[rank].difference(want[rank]) == "");
    CHECK((got[rank].published == want[rank].published));
    CHECK(got[rank].copy_is_right);
    CHECK(got[rank].moved_in > 0);
  }
}

TEST_CASE("a gradient that is not finite on one rank is the same finding on all") {
  config::Config c = outer_config(GENERATE(1, 4));  // also where an outer step would follow at once
  c.train.on_non_finite = GENERATE(config::OnNonFinite::kSkip, config::OnNonFinite::kStop);
  const auto outcomes = train_on({.ranks = 2, .ranks_per_node = 1}, c, 1, [](int rank, dataset::Batch& batch) {
    if (rank == 1) batch.images[0] = std::numeric_limits<float>::quiet_NaN();
  });
  CHECK(outcomes[0].non_finite == "input image");
  CHECK(outcomes[1].non_finite == "input image");
}

TEST_CASE("a finite gradient whose square would overflow on one rank is the same finding on all") {
  config::Config c = flow_config();
  c.dist.outer = optim::OuterConfig{.every = 4, .groups = 2};
  c.optimizer.clip_norm = GENERATE(0, 1);
  c.train.on_non_finite = GENERATE(config::OnNonFinite::kSkip, config::OnNonFinite::kStop);
  CAPTURE(c.optimizer.clip_norm, c.train.on_non_finite);
  const auto outcomes = train_on({.ranks = 2, .ranks_per_node = 1}, c, 1, [](int rank, dataset::Batch& batch) {
    if (rank == 1) batch.images[5] = 1e30f;
  });
  for (const RankOutcome& rank : outcomes) {
    CHECK(rank.non_finite == (c.optimizer.clip_norm > 0 ? "" : "gradient norm (overflow)"));
    CHECK(std::isfinite(rank.norms[0]));
  }
}
