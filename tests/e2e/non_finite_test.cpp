// Losses and gradients that are not finite: named, and either the end of the run or a step that is left out.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>

#include "ditrain/weights/safetensors.hpp"
#include "inputs.hpp"
#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

// 40 latents, 5 batches per epoch; one sample is finite but so large that the model overflows on it.
Args poisoned(const TemporaryFolder& scratch) {
  fs::create_directory(scratch / "latents");
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 40; ++i) labels.push_back(i % 8);
  write_latents(scratch / "latents/a.safetensors", labels, {23});
  return sets(latents_settings(scratch / "latents"));
}

void require_finite(const std::string& file) {
  const ditrain::weights::SafetensorsFile tensors(file);
  REQUIRE_FALSE(tensors.tensors().empty());
  for (const auto& view : tensors.tensors()) {
    const std::vector<float> values = ditrain::weights::to_f32(view);
    INFO(file << " " << view.name);
    REQUIRE(std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }));
  }
}

void require_finite_checkpoint(const std::string& folder) {
  for (const char* name : {"/model.safetensors", "/ema.safetensors", "/optimizer.safetensors"})
    require_finite(folder + name);
}

std::vector<int64_t> steps_left_out(const std::string& out) {
  std::vector<int64_t> steps;
  for (const auto& line : read_metrics(out)) {
    if (!line.contains("non_finite")) continue;
    steps.push_back(line.at("step"));
    CHECK((line.at("loss").is_null() || line.at("grad_norm").is_null() || line.at("grad_norm").get<double>() >= 1e18));
    CHECK_FALSE(line.at("non_finite").get<std::string>().empty());
  }
  return steps;
}

// What the error says of the step with this line of metrics.
std::string said_of(const nlohmann::json& line) {
  const std::string step = "step " + std::to_string(line.at("step").get<int64_t>()) + ": ";
  if (line.at("loss").is_null() || line.at("grad_norm").is_null())
    return step + line.at("non_finite").get<std::string>() + " is not finite";
  return step + "the gradient norm of ";
}

}  // namespace

TEST_CASE("non-finite numbers: stop names the tensor and the step, and keeps the weights from before") {
  const int ranks = GENERATE(1, 2);
  const std::string clip = GENERATE("1", "0");  // 0: two ranks have updated weights when they see it
  CAPTURE(ranks, clip);
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args command =
      tiny_ditrain(out, 20, poisoned(scratch) + sets({"checkpoint.every_steps=1", "optimizer.clip_norm=" + clip}));
  const Result result = run(on_ranks(ranks, command));
  REQUIRE_EXIT(result, 1);
  const auto metrics = read_metrics(out);
  const int64_t bad_step = metrics.back().at("step");
  REQUIRE(bad_step <= 20);
  REQUIRE(steps_left_out(out) == std::vector<int64_t>{bad_step});
  const std::string name = metrics.back().at("non_finite");
  INFO(result.text());
  REQUIRE_THAT(name, Catch::StartsWith("gradient ") || Catch::StartsWith("activation "));
  CHECK(name != "gradient x_embedder.proj.weight");  // the last one of the backward pass is never the first bad one
  REQUIRE_THAT(result.err, Contains(said_of(metrics.back())));
  REQUIRE_THAT(result.err, Contains("train.on_non_finite: skip"));
  const auto left = checkpoints(out);
  if (bad_step == 1) {
    REQUIRE(left.empty());
    CHECK_THAT(result.err, !Contains("train.branch_from"));
  } else {
    CHECK_THAT(result.err, Contains("train.branch_from: " + out + "/checkpoints/step_N"));
    REQUIRE(left.back() == bad_step - 1);
    require_finite_checkpoint(checkpoint_of(out, bad_step - 1));
  }
}

TEST_CASE("non-finite numbers: a finite gradient whose square would overflow ends the run or is left out") {
  const TemporaryFolder scratch;
  fs::create_directory(scratch / "latents");
  write_latents(scratch / "latents/a.safetensors", {0, 1, 2, 3, 4, 5, 6, 7});
  rewrite_tensors(scratch / "latents/a.safetensors", [](std::map<std::string, LooseTensor>& tensors) {
    const float huge = 1e30f;
    std::memcpy(tensors.at("latents").data.data(), &huge, sizeof huge);
  });
  const Args flow = sets({"model.learn_sigma=false", "diffusion.process=flow", "diffusion.prediction=x0"});
  const Args data = sets(latents_settings(scratch / "latents")) + flow + sets({"optimizer.clip_norm=0"});
  const std::string stopped = scratch / "stopped", skipped = scratch / "skipped", clipped = scratch / "clipped";
  const Result result = run(tiny_ditrain(stopped, 2, data));
  REQUIRE_EXIT(result, 1);
  CHECK_THAT(result.err, Contains("step 1: the gradient norm of ") && Contains("counts as not finite"));
  CHECK(steps_left_out(stopped) == std::vector<int64_t>{1});
  const Result skips = require_ok(tiny_ditrain(skipped, 2, data + sets({"train.on_non_finite=skip"})));
  CHECK_THAT(skips.err, Contains("counts as not finite") && Contains("the step is skipped (2 so far)"));
  require_finite_checkpoint(checkpoint_of(skipped, 2));
  require_ok(tiny_ditrain(clipped, 2, data + sets({"optimizer.clip_norm=1"})));
  CHECK(steps_left_out(clipped).empty());
  require_finite_checkpoint(checkpoint_of(clipped, 2));
}

TEST_CASE("non-finite numbers: skip leaves the step out, counts it and goes on") {
  const TemporaryFolder scratch;
  const std::string one = scratch / "one", two = scratch / "two";
  const Args more = poisoned(scratch) + sets({"train.on_non_finite=skip"});
  const Result result = require_ok(tiny_ditrain(one, 20, more));
  const auto metrics = read_metrics(one);
  REQUIRE(steps_are_complete(metrics, 20));
  const std::vector<int64_t> left_out = steps_left_out(one);
  REQUIRE_FALSE(left_out.empty());
  REQUIRE(left_out.size() <= 4);  // the sample comes once an epoch
  const std::string count = std::to_string(left_out.size());
  REQUIRE(metrics.back().at("skipped_steps") == left_out.size());
  REQUIRE_THAT(result.err, Contains("the step is skipped (" + count + " so far)"));
  REQUIRE_THAT(result.out, Contains("steps skipped: " + count));
  require_finite_checkpoint(checkpoint_of(one, 20));
  // All ranks leave out the same steps, although only one of them has the bad sample.
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(two, 20, more))), 0);
  REQUIRE(steps_left_out(two) == left_out);
  for (size_t i = 0; i < metrics.size(); ++i) {
    if (metrics[i].contains("non_finite")) continue;
    CHECK(read_metrics(two)[i].at("loss").get<double>() == Approx(metrics[i].at("loss").get<double>()).epsilon(1e-5));
  }
}

TEST_CASE("non-finite numbers: skipped steps are part of what a resumed run continues") {
  const TemporaryFolder scratch;
  const Args more = poisoned(scratch) + sets({"train.on_non_finite=skip"});
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "whole", 14, more)), 0);
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "parts", 7, more)), 0);
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "parts", 14, more + Args{"--resume", "auto"})), 0);
  CHECK(different_files(checkpoint_of(scratch / "parts", 14), checkpoint_of(scratch / "whole", 14)).empty());
  CHECK(read_metrics(scratch / "parts").back().at("skipped_steps") ==
        read_metrics(scratch / "whole").back().at("skipped_steps"));
  CHECK_FALSE(steps_left_out(scratch / "whole").empty());
  CHECK(steps_left_out(scratch / "parts") == steps_left_out(scratch / "whole"));
}

TEST_CASE("non-finite numbers: skip gives up where no step is finite any more, and keeps what came before") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args wild = sets({"optimizer.lr=1000", "optimizer.warmup_steps=0", "optimizer.clip_norm=0",
                          "optimizer.betas=[0.0, 0.0]", "optimizer.weight_decay=1000", "checkpoint.every_steps=2",
                          "checkpoint.keep_last=2", "train.on_non_finite=skip"});
  const Result result = run(tiny_ditrain(out, 300, wild));
  REQUIRE_EXIT(result, 1);
  const int64_t last_good = int64_t(read_metrics(out).size()) - int64_t(steps_left_out(out).size());
  CHECK(steps_left_out(out).size() == 100);
  CHECK_THAT(result.err, Contains("as in the 99 steps before it"));
  const auto left = checkpoints(out);
  REQUIRE_FALSE(left.empty());
  CHECK(left.back() <= last_good + 1);  // at most the first of the steps that changed nothing

  // Jobs of fewer steps than it takes to give up: they count together, and what was good stays.
  const std::string parts = scratch / "parts";
  const Args chain = wild + sets({"checkpoint.keep_last=1"}) + Args{"--resume", "auto"};
  const Result first = require_ok(tiny_ditrain(parts, last_good + 40, chain));
  CHECK_THAT(first.err, Contains("the last 40 steps were skipped"));
  const int64_t good = checkpoints(parts).front();
  CHECK(good <= last_good + 1);
  REQUIRE_EXIT(run(tiny_ditrain(parts, last_good + 80, chain)), 0);
  const Result failed = run(tiny_ditrain(parts, 300, chain));
  REQUIRE_EXIT(failed, 1);
  CHECK_THAT(failed.err, Contains("as in the 99 steps before it"));
  CHECK(steps_left_out(parts).size() == 100);
  CHECK(checkpoints(parts) == std::vector<int64_t>{good, last_good + 40, last_good + 80});
}

TEST_CASE("non-finite numbers: a learning rate far too high") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  const Args wild =
      sets({"optimizer.lr=1000", "optimizer.warmup_steps=0", "optimizer.clip_norm=0", "optimizer.betas=[0.0, 0.0]",
            "optimizer.weight_decay=1000", "checkpoint.every_steps=1", "train.on_non_finite=stop"});
  const Result result = run(tiny_ditrain(out, 100, wild));
  REQUIRE_EXIT(result, 1);
  const auto metrics = read_metrics(out);
  REQUIRE_THAT(result.err, Contains(said_of(metrics.back())));
  const auto left = checkpoints(out);
  REQUIRE(left.back() == int64_t(metrics.size()) - 1);
  require_finite_checkpoint(checkpoint_of(out, left.back()));
}

TEST_CASE("non-finite numbers: of a loss, the first activation that is not finite is named") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "sound", 1)), 0);
  const std::string weights = scratch / "weights.safetensors";  // without the checksums beside a checkpoint's
  fs::copy_file(checkpoint_of(scratch / "sound", 1) + "/model.safetensors", weights);
  rewrite_tensors(weights, [](std::map<std::string, LooseTensor>& tensors) {
    LooseTensor& weight = tensors.at("blocks.1.mlp.fc1.weight");
    const std::vector<float> large(weight.data.size() / sizeof(float), 3e38f);  // finite; no product with it is
    std::memcpy(weight.data.data(), large.data(), weight.data.size());
  });
  const Result result = run(tiny_ditrain(out, 5, sets({"train.init_from=" + weights})));
  REQUIRE_EXIT(result, 1);
  const auto metrics = read_metrics(out);
  REQUIRE(metrics.size() == 1);
  CHECK(metrics[0].at("loss").is_null());
  const std::string name = metrics[0].at("non_finite");
  CHECK_THAT(name, Catch::StartsWith("activation blocks.1."));
  CHECK_THAT(result.err, Contains("step 1: " + name + " is not finite"));
  CHECK(checkpoints(out).empty());
}
