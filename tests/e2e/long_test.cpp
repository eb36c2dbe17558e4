// A thousand steps: does a small difference in every sum or rounding add up to another run? Minutes, so only with
// scripts/test_long.sh.
#include <catch2/catch.hpp>

#include "learning.hpp"
#include "run.hpp"

using namespace ditrain::e2e;

namespace {

constexpr int64_t kLongSteps = 1000;
constexpr size_t kWindow = 100;
const RunOptions kPatient{.timeout_s = 1500};

}  // namespace

TEST_CASE("long: 1,000 steps of a small model of noise in bf16 follow those in f32", "[.long]") {
  const TemporaryFolder scratch;
  // The rate of the paper: the quick start's own is 30 times that, and two f32 runs would not stay together either.
  const Args settings =
      sets({"train.steps=" + std::to_string(kLongSteps), "optimizer.lr=1e-4", "sample.every_steps=0",
            "optimizer.schedule=constant", "optimizer.betas=[0.9,0.999]", "eval.every_steps=0", "model.depth=4",
            "model.patch_size=4", "model.patch_overlap=0", "model.learn_sigma=true", "diffusion.process=ddpm",
            "diffusion.prediction=epsilon", "diffusion.schedule=squaredcos_cap_v2", "diffusion.time=uniform",
            "diffusion.time_mean=0", "diffusion.time_deviation=1", "sample.sampler=auto"});
  for (const std::string type : {"f32", "bf16"}) {
    const Args job =
        program("ditrain", {"--config", std::string(DITRAIN_CONFIG_DIR) + "/quickstart.yaml", "--out", scratch / type});
    REQUIRE_EXIT(run(job + settings + sets({"train.precision=" + type}), kPatient), 0);
  }
  const std::vector<double> f32 = smoothed_loss(scratch / "f32", kWindow),
                            bf16 = smoothed_loss(scratch / "bf16", kWindow);
  const double apart = largest_relative_difference(bf16, f32);
  WARN("loss " << f32.front() << " -> " << f32.back() << "; bf16 within " << 100 * apart << " %");
  CHECK(f32.back() < 0.15 * f32.front());
  CHECK(apart > 0);
  CHECK(apart < 0.02);
}

TEST_CASE("long: 1,000 steps follow those with sums in f64 and those with other kernels throughout", "[.long]") {
  const TemporaryFolder scratch;
  // Without vector extensions nothing is fused, lanes are four, and attention, losses, normals and the optimiser round
  // differently, too.
  RunOptions baseline = kPatient;
  baseline.environment = {"DITRAIN_ISA=baseline"};
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "own", kLongSteps), kPatient), 0);
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "f64 products", kLongSteps, sets({"kernels.gemm=ref"})), kPatient), 0);
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "baseline", kLongSteps), baseline), 0);
  const std::vector<double> own = smoothed_loss(scratch / "own", kWindow), steps = smoothed_loss(scratch / "own", 1);
  CHECK(own.back() < 0.5 * steps.front());  // it has learnt something
  for (const std::string other : {"f64 products", "baseline"}) {
    const double apart = largest_relative_difference(own, smoothed_loss(scratch / other, kWindow));
    const double step = largest_relative_difference(steps, smoothed_loss(scratch / other, 1));
    WARN("loss " << own.front() << " -> " << own.back() << "; " << other << " within " << 100 * apart
                 << " %, single steps within " << 100 * step << " %");
    CHECK(apart > 0);
    CHECK(apart < 1e-3);
  }
}
