// What the numbers of a run may depend on: not on ranks, micro-batches or threads.
#include <catch2/catch.hpp>

#include "run.hpp"

using namespace ditrain::e2e;

namespace {
// Sums of gradients in another order of f32 additions move the loss by a few 1e-7 in these 20 steps.
constexpr double kTolerance = 1e-5;
constexpr int64_t kSteps = 20;

std::vector<double> losses(const std::string& out) { return column(read_metrics(out), "loss"); }
}  // namespace

TEST_CASE("ranks: 1, 2, 3 and 4 ranks have the same losses with the same global batch") {
  const TemporaryFolder scratch;
  const std::string one = scratch / "1", two = scratch / "2", four = scratch / "4";
  REQUIRE_EXIT(run(tiny_ditrain(one, kSteps)), 0);
  REQUIRE(steps_are_complete(read_metrics(one), kSteps));
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(two, kSteps))), 0);
  CHECK(largest_relative_difference(losses(two), losses(one)) < kTolerance);
  REQUIRE_EXIT(run(mpirun(4, tiny_ditrain(four, kSteps))), 0);
  CHECK(largest_relative_difference(losses(four), losses(one)) < kTolerance);
  const Args dozen = sets({"train.global_batch=12"});
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "dozen", kSteps, dozen)), 0);
  REQUIRE_EXIT(run(mpirun(3, tiny_ditrain(scratch / "3", kSteps, dozen))), 0);
  CHECK(largest_relative_difference(losses(scratch / "3"), losses(scratch / "dozen")) < kTolerance);
  // The comparison can fail: another seed is far outside.
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "seed", kSteps, sets({"train.seed=1"}))), 0);
  CHECK(largest_relative_difference(losses(scratch / "seed"), losses(one)) > 100 * kTolerance);
}

TEST_CASE("ranks: a run goes on with another number of ranks") {
  const TemporaryFolder scratch;
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "whole", kSteps)), 0);
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(out, 8))), 0);
  const Result on_four = require_ok(mpirun(4, tiny_ditrain(out, 14, {"--resume", "auto"})));
  REQUIRE_THAT(on_four.out, Catch::Contains("resuming a run of 2 rank(s) on 4"));
  REQUIRE_EXIT(run(tiny_ditrain(out, kSteps, {"--resume", "auto"})), 0);
  REQUIRE(steps_are_complete(read_metrics(out), kSteps));
  CHECK(largest_relative_difference(losses(out), losses(scratch / "whole")) < kTolerance);
}

TEST_CASE("micro-batches: accumulated gradients give the losses of the whole batch") {
  const TemporaryFolder scratch;
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "whole", kSteps)), 0);
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "micro", kSteps, sets({"train.micro_batch=2"}))), 0);
  CHECK(largest_relative_difference(losses(scratch / "micro"), losses(scratch / "whole")) < kTolerance);
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(scratch / "ranks", kSteps, sets({"train.micro_batch=1"})))), 0);
  CHECK(largest_relative_difference(losses(scratch / "ranks"), losses(scratch / "whole")) < kTolerance);
}

TEST_CASE("threads: 1, 2 and 3 threads give the same weights, bit for bit") {
  const TemporaryFolder scratch;
  const Args more = sets({"sample.every_steps=4", "sample.num_images=3", "sample.steps=2"});
  for (const char* threads : {"1", "2", "3"})
    REQUIRE_EXIT(run(tiny_ditrain(scratch / threads, 8, more + sets({std::string("parallel.threads=") + threads}))), 0);
  for (const char* threads : {"2", "3"}) {
    CAPTURE(threads);
    CHECK(different_files(checkpoint_of(scratch / threads, 8), checkpoint_of(scratch / "1", 8)).empty());
    CHECK(losses(scratch / threads) == losses(scratch / "1"));
    CHECK(same_file(scratch / threads + "/samples/step_00000008.png", scratch / "1" + "/samples/step_00000008.png"));
  }
}

TEST_CASE("ranks: with dist.reproducible 1, 2 and 4 ranks give the same weights, bit for bit") {
  const int64_t micro = GENERATE(1, 2);
  CAPTURE(micro);
  const TemporaryFolder scratch;
  const Args more = sets({"dist.reproducible=true", "train.micro_batch=" + std::to_string(micro),
                          "optimizer.clip_norm=0.05", "dist.bucket_mib=0.05"});
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "1", 6, more)), 0);
  const auto want = read_metrics(scratch / "1");
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    const std::string out = scratch / std::to_string(ranks);
    REQUIRE_EXIT(run(mpirun(ranks, tiny_ditrain(out, 6, more))), 0);
    CHECK(different_files(checkpoint_of(out, 6), checkpoint_of(scratch / "1", 6)).empty());
    const auto got = read_metrics(out);
    for (const char* key : {"loss", "mse", "vb", "grad_norm"}) CHECK(column(got, key) == column(want, key));
  }
  const Result three = run(mpirun(3, tiny_ditrain(scratch / "3", 6, more + sets({"train.global_batch=12"}))));
  REQUIRE_EXIT(three, 2);
  CHECK_THAT(three.err, Catch::Contains("power of two"));
}
