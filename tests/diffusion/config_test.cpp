#include "ditrain/diffusion/config.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "ditrain/diffusion/sampler.hpp"

using namespace ditrain;
using namespace ditrain::diffusion;

TEST_CASE("auto follows the model's channels") {
  const Rules learned = make_rules({}, true), fixed = make_rules({}, false);
  CHECK(learned.variance == Variance::kLearnedRange);
  CHECK(learned.output_channels(4) == 8);
  CHECK(fixed.variance == Variance::kFixedLarge);
  CHECK(fixed.output_channels(4) == 4);
  CHECK(learned.objective->name == "mse_vb");
}

TEST_CASE("every word of a config is understood") {
  for (const Objective& row : objectives()) {
    CHECK(make_rules({.loss = std::string(row.name)}, true).objective->name == row.name);
  }
  for (const BetaSchedule& row : beta_schedules()) {
    CHECK_NOTHROW(make_rules({.schedule = std::string(row.name)}, true));
  }
  CHECK(make_rules({.prediction = "x0"}, true).prediction == Prediction::kX0);
  CHECK(make_rules({.variance = "fixed_small"}, false).variance == Variance::kFixedSmall);
}

TEST_CASE("variance and model have to agree") {
  CHECK_THROWS_WITH(make_rules({.variance = "learned_range"}, false), Catch::Contains("learn_sigma off"));
  CHECK_THROWS_WITH(make_rules({.variance = "fixed_large"}, true), Catch::Contains("learn_sigma on"));
  CHECK_THROWS_AS(make_rules({.variance = "fixed_small"}, true), InputError);
}

TEST_CASE("unknown words name the key and the nearest word") {
  CHECK_THROWS_WITH(Config{.schedule = "cosine"}.validate(), Catch::Contains("unknown schedule"));
  CHECK_THROWS_WITH(Config{.prediction = "epsilom"}.validate(),
                    Catch::Contains("unknown prediction") && Catch::Contains("try epsilon"));
  CHECK_THROWS_WITH(Config{.variance = "fixed_larg"}.validate(), Catch::Contains("try fixed_large"));
  CHECK_THROWS_WITH(Config{.loss = "mse_bv"}.validate(),
                    Catch::Contains("unknown loss") && Catch::Contains("mse | mse_vb | kl"));
  CHECK_THROWS_AS(Config{.num_steps = 0}.validate(), InputError);
  CHECK_THROWS_AS(make_rules({.loss = ""}, true), InputError);
}

TEST_CASE("sampler settings out of range are refused") {
  CHECK_NOTHROW(SamplerConfig{}.validate(1000));
  CHECK_NOTHROW(
      SamplerConfig{.kind = "ddim", .spacing = "ddim50", .eta = 1, .cfg_scale = 0, .cfg_channels = -1}.validate(1000));
  CHECK_THROWS_WITH(SamplerConfig{.kind = "dpm"}.validate(1000), Catch::Contains("unknown sampler"));
  CHECK_THROWS_WITH(SamplerConfig{}.validate(100), Catch::Contains("spacing"));
  CHECK_THROWS_WITH(SamplerConfig{.eta = 1.5}.validate(1000), Catch::Contains("eta"));
  CHECK_THROWS_WITH(SamplerConfig{.eta = NAN}.validate(1000), Catch::Contains("eta"));
  CHECK_THROWS_WITH(SamplerConfig{.cfg_scale = -1}.validate(1000), Catch::Contains("cfg_scale"));
  CHECK_THROWS_WITH(SamplerConfig{.cfg_scale = INFINITY}.validate(1000), Catch::Contains("cfg_scale"));
  CHECK_THROWS_WITH(SamplerConfig{.cfg_channels = 0}.validate(1000), Catch::Contains("cfg_channels"));
}
