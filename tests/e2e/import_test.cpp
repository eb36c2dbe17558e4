// From published weights to samples and to fine-tuning: ditimport, ditsample, and train.init_from.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

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
  const Result made = require_ok(import(golden("diffusers_dit"), scratch / "dit"));
  CHECK_THAT(made.out, Contains("by 127, where the reference and ditrain divide by 128") &&
                           Contains("4 heads, patch 2, input 4 x 8 x 8, 10 classes") &&
                           Contains("guidance acts on the first three channels, as in the reference"));
  REQUIRE_EXIT(run(program("ditverify", {"--checkpoint", scratch / "dit"})), 0);
  // Guidance of reference weights acts on three channels, unless the user wants all.
  const auto draw = [&](const std::string& out, const Args& more) {
    const Result drawn =
        require_ok(program("ditsample", Args{"--checkpoint", scratch / "dit", "--labels", "0,1", "--num", "2",
                                             "--steps", "2", "--cfg-scale", "4", "--out", scratch / out} +
                                            more));
    return drawn.out;
  };
  CHECK_THAT(draw("samples", {}), Contains("guidance acts on the first 3 of 4 channels"));
  CHECK_THAT(draw("all", {"--cfg-channels", "all"}), Contains("guidance 4 on all channels"));
  const auto guided = [&](const std::string& out) {
    return read_json(scratch / out + "/samples.json").at("guided_channels");
  };
  CHECK((guided("samples") == 3 && guided("all") == "all"));
  CHECK(read_file(scratch / "samples/samples.safetensors") != read_file(scratch / "all/samples.safetensors"));
  const Result free =
      require_ok(import(golden("diffusers_dit"), scratch / "free", {"--set", "sample.cfg_channels=all"}));
  CHECK_THAT(free.out, !Contains("guidance acts on"));
  CHECK_THAT(read_file(scratch / "free/state.json"), Contains("cfg_channels: all"));
  const Result exported = require_ok(
      program("ditexport", {"--checkpoint", scratch / "dit", "--format", "diffusers", "--out", scratch / "diffusers"}));
  CHECK_THAT(exported.out, Contains("by 127, where the reference and ditrain divide by 128"));

  require_error(import(golden("diffusers_dit"), scratch / "dit"), {"ditimport: error: [import]", "exists already"});
  require_error(program("ditimport", {"--list", golden("pos_embed.safetensors"), "--out", scratch / "x"}),
                {"--out has no meaning with --list"});
}

TEST_CASE("train.init_from: a run that guides all channels of reference weights says so") {
  const TemporaryFolder scratch;
  write_latents(scratch / "latents.safetensors", {0, 1, 2, 3, 4, 5, 6, 7});
  const auto tuned = [&](const std::string& out, const std::string& channels) {
    const Args start = sets({"train.init_from=" + golden("diffusers_dit"), "model.hidden_size=64", "model.num_heads=4",
                             "sample.cfg_channels=" + channels});
    return run(tiny_ditrain(scratch / out, 1, sets(latents_settings(scratch / "latents.safetensors")) + start));
  };
  const Result all = tuned("all", "all"), three = tuned("three", "3");
  REQUIRE_EXIT(all, 0);
  CHECK_THAT(all.out, Contains("weights: guidance acted on their first three channels, here on all"));
  REQUIRE_EXIT(three, 0);
  CHECK_THAT(three.out, !Contains("guidance acted"));
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
  const Result one = require_ok(tuned(file, "one"));
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

  require_error(tuned(file, "four", sets({"model.patch_size=4"})),
                {"of another network: model.patch_size; got 2, expected 4"});
  require_error(tuned(golden("vae_names/vae_names_new.safetensors"), "five"),
                {"not the weights of a DiT; this looks like an autoencoder (VAE)"});
}
