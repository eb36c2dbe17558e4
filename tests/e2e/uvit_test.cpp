// Runs of another architecture (model.kind: uvit): ranks, clusters, memory tiers and resuming, samples and exports.
#include <catch2/catch.hpp>

#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

// 66 tokens, so that the gradients of skips move between tiers.
const Args kUvit = sets({"model.kind=uvit", "model.depth=5", "model.hidden_size=128", "model.num_heads=4",
                         "model.input_size=16", "model.patch_size=2"});

}  // namespace

TEST_CASE("uvit: parts of a run in tiers and clusters are the whole run, ranks learn the same, exports are its own") {
  const TemporaryFolder scratch;
  const std::string whole = scratch / "whole", parts = scratch / "parts", ranks = scratch / "ranks";
  REQUIRE_EXIT(run(tiny_ditrain(whole, 4, kUvit)), 0);
  const Args on_disk = sets({"memory.automem=planned", "memory.fast_gib=0.016", "memory.disk_gib=0.2",
                             "memory.disk_path=" + (scratch / ".")});
  REQUIRE_EXIT(run(tiny_ditrain(parts, 2, kUvit + on_disk)), 0);
  CHECK(read_metrics(parts).front()["automem"]["disk_bytes_in"] > 0);
  const Args clusters = sets({"parallel.clusters=2", "parallel.threads=2", "train.recompute=block"});
  REQUIRE_EXIT(run(tiny_ditrain(parts, 4, kUvit + clusters + Args{"--resume", "auto"})), 0);
  CHECK(different_files(checkpoint_of(parts, 4), checkpoint_of(whole, 4)).empty());
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(ranks, 4, kUvit + sets({"dist.shard_optimizer=true"})))), 0);
  CHECK(largest_relative_difference(column(read_metrics(ranks), "loss"), column(read_metrics(whole), "loss")) < 1e-5);

  require_error(tiny_ditrain(parts, 6, sets({"model.kind=dit", "model.depth=5"}) + Args{"--resume", "auto"}),
                {"model.kind"});
  require_error(program("ditexport", {"--checkpoint", whole, "--out", scratch / "no", "--format", "dit"}),
                {"got dit for weights of model.kind: uvit, expected uvit"});
  require_error(program("ditexport", {"--checkpoint", whole, "--out", scratch / "no", "--format", "diffusers"}),
                {"model.kind: uvit", "--format uvit"});
  const std::string file = scratch / "uvit.safetensors";
  REQUIRE_EXIT(run(program("ditexport", {"--checkpoint", whole, "--out", file})), 0);
  const Result listed = require_ok(program("ditimport", {"--list", "--from", file}));
  CHECK_THAT(listed.out, Contains("out_blocks.1.skip_linear.weight") && Contains("in_blocks.0.attn.qkv.weight"));
  REQUIRE_EXIT(run(program("ditsample", {"--checkpoint", file, "--num", "2", "--steps", "2", "--out", scratch / "s"})),
               0);
  // Another run starts from it; a DiT does not.
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "next", 1, kUvit + sets({"train.init_from=" + file}))), 0);
  require_error(tiny_ditrain(scratch / "dit", 1, sets({"train.init_from=" + file})),
                {"the weights are of another network: model.kind; got uvit, expected dit"});
  require_error(tiny_ditrain(scratch / "more", 1, kUvit + sets({"train.init_from=" + file, "model.input_size=32"})),
                {"weights of model.kind: uvit are not adapted"});
}
