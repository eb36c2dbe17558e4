// A folder of one's own pictures, with classes or without, trains with a config of others at the first try.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "ditrain/base/random.hpp"
#include "ditrain/images/image.hpp"
#include "inputs.hpp"
#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

// Two steps of configs/cifar10.yaml, the samples of the last step guided (sample.cfg_scale: 2).
Args cifar10(const std::string& images, const std::string& out, const Args& more = {}) {
  return program(
      "ditrain",
      Args{"--config", std::string(DITRAIN_CONFIG_DIR) + "/cifar10.yaml", "--out", out, "--set", "log.level=debug"} +
          sets({"data.path=" + images, "train.steps=2", "train.global_batch=4", "model.hidden_size=32", "model.depth=1",
                "sample.every_steps=2", "sample.num_images=4", "sample.steps=2", "eval.every_steps=0",
                "parallel.threads=1"}) +
          more);
}

}  // namespace

TEST_CASE("own data: a flat folder trains without labels, and its samples are drawn without guidance") {
  const TemporaryFolder scratch;
  write_image_folder(scratch / "images", 1, 8);
  const Result trained = require_ok(cifar10(scratch / "images/class_0", scratch / "run"));
  CHECK_THAT(trained.out, Contains("no labels") && Contains("guidance is off: sample.cfg_scale 2 needs labels"));
  CHECK(fs::exists(scratch / "run/samples/step_00000002.png"));
  CHECK_THAT(trained.out, Contains("settled: model.num_classes: 0, was auto"));
  REQUIRE_EXIT(run(program("ditsample", {"--checkpoint", scratch / "run", "--num", "2", "--steps", "2", "--out",
                                         scratch / "samples"})),
               0);
}

TEST_CASE("own data: classes are counted, and the number is part of the run") {
  const TemporaryFolder scratch;
  const std::string images = scratch / "images";
  write_image_folder(images, 2, 4);
  const Result trained = require_ok(cifar10(images, scratch / "run"));
  CHECK_THAT(trained.out, !Contains("guidance is off"));
  CHECK_THAT(trained.out, Contains("settled: model.num_classes: 2, was auto"));
  CHECK_THAT(read_file(scratch / "run/config.yaml"), Contains("num_classes: auto "));
  CHECK_THAT(trained.err, !Contains("there are no samples of"));
  // --nearest needs the data: the run names it, an exported file does not.
  const auto nearest = [&](const std::string& checkpoint, const std::string& out) {
    return run(program("ditsample",
                       {"--checkpoint", checkpoint, "--num", "2", "--steps", "2", "--nearest", "4", "--out", out}));
  };
  const Result compared = nearest(scratch / "run", scratch / "near");
  REQUIRE_EXIT(compared, 0);
  CHECK_THAT(compared.out, Contains("nearest neighbour among 4 training images"));
  const std::string file = scratch / "exported.safetensors";
  REQUIRE_EXIT(run(program("ditexport", {"--checkpoint", scratch / "run", "--out", file, "--format", "dit"})), 0);
  const Result without_data = nearest(file, scratch / "far");
  REQUIRE_EXIT(without_data, 2);
  CHECK_THAT(without_data.err, Contains("data.path"));
  require_error(program("ditsample", {"--checkpoint", scratch / "run", "--num", "1", "--steps", "2", "--labels", "2",
                                      "--out", scratch / "samples"}),
                {"expected 0 to 1"});
  // A config with the number, as older runs have it, goes on with one that counts, and the other way round.
  const Args more = {"--set", "train.steps=3", "--resume", "auto"};
  REQUIRE_EXIT(run(cifar10(images, scratch / "run", more + sets({"model.num_classes=2"}))), 0);
  write_image_folder(images, 3, 1);
  require_error(cifar10(images, scratch / "run", more), {"model.num_classes: was 2, now 3"});

  const Result ten = require_ok(cifar10(images, scratch / "ten", sets({"model.num_classes=10"})));
  CHECK_THAT(ten.err, Contains("there are no samples of 7 of 10 classes: 3 to 9"));
  const Result planned = require_ok(cifar10("", scratch / "planned", {"--dry-run"}));
  CHECK_THAT(planned.out, Contains("model.num_classes: auto: 1000 classes are assumed until then"));
  const Result dry_ten =
      require_ok(cifar10(images, scratch / "planned", {"--dry-run", "--set", "model.num_classes=10"}));
  CHECK_THAT(dry_ten.err, Contains("there are no samples of 7 of 10 classes: 3 to 9"));
  write_file(images + "/class_1/torn.png", "no PNG");
  const Result dry = require_ok(cifar10(images, scratch / "planned", {"--dry-run"}));
  CHECK_THAT(dry.out, Contains("3 x 32 x 32, 3 classes,"));
  CHECK_THAT(dry.err, Contains("torn.png"));
}

TEST_CASE("own data: the validation loss is that of the images that data.hold_out sets aside") {
  const TemporaryFolder scratch;
  for (const char* folder : {"all", "held_out"}) fs::create_directories(scratch / folder);
  for (uint8_t i = 0; i < 24; ++i) {
    const ditrain::images::ImageU8 image{32, 32, 3, std::vector<uint8_t>(32 * 32 * 3, uint8_t(10 * i))};
    const std::string name = "/" + std::string(1, char('a' + i)) + ".png";
    ditrain::images::write_png(scratch / "all" + name, image);
    if (ditrain::RandomKey(0, ditrain::Stream::kHeldOut, i).uniform(0) < 0.4)
      ditrain::images::write_png(scratch / "held_out" + name, image);
  }
  // All keep the initial weights but for their last bits, so that only the images differ.
  const auto validation = [&](const std::string& images, const std::string& out, const std::string& hold_out) {
    const Result result =
        require_ok(cifar10(scratch / images, scratch / out,
                           sets({"optimizer.kind=adamw", "optimizer.lr=1e-12", "sample.every_steps=0",
                                 "eval.every_steps=2", "eval.num_images=6", "data.hold_out=" + hold_out})));
    CHECK((result.out.find("fixed held-out images") != std::string::npos) == (hold_out != "0"));
    return read_metrics(scratch / out).back().at("val_mse").get<double>();
  };
  const double held_out = validation("all", "parts", "0.4");
  CHECK(held_out == Approx(validation("held_out", "copies", "0")).epsilon(1e-10));
  CHECK(held_out != Approx(validation("all", "whole", "0")).epsilon(1e-4));
}

TEST_CASE("own data: the way of photos.yaml, from a dry run to samples, flat and with classes") {
  const TemporaryFolder scratch;
  write_image_folder(scratch / "photos", 2, 4);
  write_file(scratch / "photos/class_0/torn.jpg", "no JPEG");
  for (const std::string folder : {"photos", "photos/class_1"}) {
    CAPTURE(folder);
    const std::string out = scratch / (folder == "photos" ? "classes" : "flat");
    const Args small = sets({"data.path=" + scratch / folder, "model.hidden_size=48", "model.depth=1", "train.steps=3",
                             "train.global_batch=4", "sample.every_steps=3", "sample.num_images=2", "sample.steps=2",
                             "eval.every_steps=3", "eval.num_images=4", "parallel.threads=1"});
    const Args start =
        program("ditrain", Args{"--config", std::string(DITRAIN_CONFIG_DIR) + "/photos.yaml", "--out", out} + small);
    const Result dry = require_ok(start + Args{"--dry-run"});
    CHECK_THAT(dry.out, Contains("time, predicted from rates of this machine") && Contains("  checkpoint   "));
    require_ok(start);
    CHECK(read_metrics(out).back().contains("val_mse"));
    CHECK(fs::exists(out + "/samples/step_00000003.png"));
    CHECK(fs::exists(out + "/report.html"));
    REQUIRE_EXIT(
        run(program("ditsample", {"--checkpoint", out, "--num", "2", "--steps", "2", "--out", out + "/drawn"})), 0);
    CHECK(fs::exists(out + "/drawn/000001.png"));
  }
}
