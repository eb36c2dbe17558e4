// From published weights to samples and to fine-tuning: ditimport, ditsample, and train.init_from.
#include <catch2/catch.hpp>

#include "inputs.hpp"
#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

std::string golden(const std::string& name) { return std::string(DITRAIN_GOLDEN_DIR "/") + name; }

Args import(const std::string& from, const std::string& out, const Args& more = {}) {
  return program("ditimport", Args{"--from", from, "--out", out} + more);
}

}  // namespace

TEST_CASE("ditimport: a folder of diffusers becomes a checkpoint that samples, exports and passes ditverify") {
  const TemporaryFolder scratch;
  const Result made = run(import(golden("diffusers_dit"), scratch / "dit"));
  REQUIRE_EXIT(made, 0);
  CHECK_THAT(made.out, Contains("by 127, where the reference and ditrain divide by 128") &&
                           Contains("4 heads, patch 2, input 4 x 8 x 8, 10 classes"));
  REQUIRE_EXIT(run(program("ditverify", {"--checkpoint", scratch / "dit"})), 0);
  REQUIRE_EXIT(run(program("ditsample", {"--checkpoint", scratch / "dit", "--labels", "0,1", "--num", "2", "--steps",
                                         "2", "--out", scratch / "samples"})),
               0);
  CHECK(fs::exists(scratch / "samples/samples.safetensors"));
  const Result exported = run(
      program("ditexport", {"--checkpoint", scratch / "dit", "--format", "diffusers", "--out", scratch / "diffusers"}));
  REQUIRE_EXIT(exported, 0);
  CHECK_THAT(exported.out, Contains("by 127, where the reference and ditrain divide by 128"));

  const Result again = run(import(golden("diffusers_dit"), scratch / "dit"));
  CHECK(again.exit_code == 2);
  CHECK_THAT(again.err, Contains("ditimport: error: [import]") && Contains("exists already"));
  const Result usage = run(program("ditimport", {"--list", golden("pos_embed.safetensors"), "--out", scratch / "x"}));
  CHECK(usage.exit_code == 2);
  CHECK_THAT(usage.err, Contains("--out has no meaning with --list"));
}

TEST_CASE("ditimport: a full disk leaves nothing behind") {
  const TemporaryFolder scratch;
  const Result full = run(import(golden("diffusers_dit"), scratch / "dit"), {.max_file_bytes = 500000});
  REQUIRE_EXIT(full, 1);
  CHECK_THAT(full.err, Contains("[import]"));
  CHECK(fs::is_empty(scratch.path()));
}

TEST_CASE("train.init_from: published weights are adapted to the run, on ranks as alone, and the log tells how") {
  const TemporaryFolder scratch;
  // train.pt holds a model of one block of width 16 for 3 x 4 x 4 and 5 classes.
  const auto tuned = [&](const std::string& from, const std::string& out, const Args& more = {}) {
    return tiny_ditrain(scratch / out, 1,
                        sets({"train.init_from=" + from, "model.name=custom", "model.hidden_size=16", "model.depth=1",
                              "model.num_heads=2", "model.patch_size=2", "model.input_size=8", "model.num_classes=8",
                              "model.learn_sigma=false", "optimizer.lr=0"}) +
                            more);
  };
  const std::string file = golden("pt_files/train.pt");
  const Result one = run(tuned(file, "one"));
  REQUIRE_EXIT(one, 0);
  CHECK_THAT(one.out,
             Contains("weights: 5 classes in the file, 8 here: a new label table, with the file's row of dropped") &&
                 Contains("weights: input of 4 x 4 in the file, 8 x 8 here: a new position table") &&
                 Contains("weights: the variance channels of the file are dropped"));
  REQUIRE_EXIT(run(mpirun(2, tuned(file, "two"))), 0);
  CHECK(same_file(checkpoint_of(scratch / "one", 1) + "/model.safetensors",
                  checkpoint_of(scratch / "two", 1) + "/model.safetensors"));

  // Imported first, the same start.
  REQUIRE_EXIT(run(import(file, scratch / "imported", {"--set", "model.num_heads=2"})), 0);
  REQUIRE_EXIT(run(tuned(scratch / "imported", "three")), 0);
  CHECK(same_file(checkpoint_of(scratch / "one", 1) + "/model.safetensors",
                  checkpoint_of(scratch / "three", 1) + "/model.safetensors"));

  const Result other = run(tuned(file, "four", sets({"model.patch_size=4"})));
  REQUIRE_EXIT(other, 2);
  CHECK_THAT(other.err, Contains("of another network: model.patch_size; got 2, expected 4"));
  const Result vae = run(tuned(golden("vae_names/vae_names_new.safetensors"), "five"));
  REQUIRE_EXIT(vae, 2);
  CHECK_THAT(vae.err, Contains("not the weights of a DiT; this looks like an autoencoder (VAE)"));
}
