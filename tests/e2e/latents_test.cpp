// From a folder of images to a model that trains on their latents: ditdata encode, alone, on ranks and killed on the
// way, then ditrain on what it wrote.
#include <signal.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <nlohmann/json.hpp>

#include "ditrain/images/image.hpp"
#include "ditrain/images/raster.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "inputs.hpp"
#include "run.hpp"

using namespace ditrain::e2e;
using Catch::Contains;

namespace {

const std::string kNames = std::string(DITRAIN_GOLDEN_DIR) + "/vae_names/";

// An autoencoder of two levels and eight groups, which halves the sides of images.
Args ditdata(const std::string& images, const std::string& out, const Args& more = {}) {
  return program("ditdata", Args{"encode", "--from", images, "--vae", kNames + "vae_names_sd.safetensors", "--groups",
                                 "8", "--scale-factor", "0.5", "--size", "16", "--shard", "3", "--out", out} +
                                more);
}

}  // namespace

TEST_CASE("ditdata: latents of a folder of images are what ditrain trains on") {
  const TemporaryFolder scratch;
  const std::string images = scratch / "images";
  write_image_folder(images, 2, 5);
  const Result made = require_ok(ditdata(images, scratch / "latents", {"--flip"}));
  CHECK_THAT(made.out, Contains("10 of 10 images") && Contains("images/s") && Contains("data.kind=latents data.path="));
  CHECK(data_files(scratch / "latents").size() == 5);  // four shards, stats.json

  Args settings = latents_settings(scratch / "latents");
  settings.insert(settings.end(), {"model.num_classes=2", "train.global_batch=5"});
  const Result trained = require_ok(tiny_ditrain(scratch / "run", 3, sets(settings)));
  CHECK(steps_are_complete(read_metrics(scratch / "run"), 3));
  CHECK_THAT(trained.out, Contains(", flipped copies, times 0.5"));
  CHECK_THAT(trained.out, Contains("settled: data.latent_scale: 0.5, was auto"));
  // What the factor was is part of the run: told or found, it goes on.
  const auto resumed = [&](const std::vector<std::string>& more) {
    return run(tiny_ditrain(scratch / "run", 4, sets(settings) + sets(more) + Args{"--resume", "auto"}));
  };
  const Result other = resumed({"data.latent_scale=0.25"});
  REQUIRE_EXIT(other, 2);
  CHECK_THAT(other.err, Contains("data.latent_scale: was 0.5, now 0.25"));
  REQUIRE_EXIT(resumed({"data.latent_scale=0.5"}), 0);

  // The same autoencoder decodes what the model draws.
  write_small_vae(scratch / "vae");
  const auto draw = [&](const std::string& out, const Args& more) {
    return program("ditsample", Args{"--checkpoint", scratch / "run", "--vae", scratch / "vae", "--num", "3", "--steps",
                                     "3", "--grid", scratch / out + ".png", "--out", scratch / out} +
                                    more);
  };
  REQUIRE_EXIT(run(draw("one", {})), 0);
  for (const int ranks : {2, 4}) {
    const std::string out = std::to_string(ranks);
    REQUIRE_EXIT(run(mpirun(ranks, draw(out, {"--threads", "1"}))), 0);
    CHECK(data_files(scratch / out) == data_files(scratch / "one"));
    CHECK(same_file(scratch / out + ".png", scratch / "one.png"));
  }
  const auto facts = read_json(scratch / "one/samples.json");
  CHECK((facts.at("vae") == scratch / "vae" && facts.at("latents") == false));
  const auto picture = ditrain::images::read_image(scratch / "one/000002.png");
  CHECK((picture.width == 16 && picture.height == 16 && picture.channels == 3));
  CHECK_FALSE(fs::exists(scratch / "one/samples.safetensors"));

  // In bf16 the picture differs by a level here and there.
  CHECK(facts.at("precision") == "f32");
  REQUIRE_EXIT(run(draw("rounded", {"--precision", "bf16"})), 0);
  CHECK(read_json(scratch / "rounded/samples.json").at("precision") == "bf16");
  const auto rounded = ditrain::images::read_image(scratch / "rounded/000002.png");
  double difference = 0;
  for (size_t i = 0; i < picture.pixels.size(); ++i)
    difference += std::abs(int(picture.pixels[i]) - int(rounded.pixels[i])) / double(picture.pixels.size());
  CHECK(difference > 0);
  CHECK(difference < 1);
}

TEST_CASE("ditsample: a VAE of other channels than the model's is refused") {
  const TemporaryFolder scratch;
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "run", 1)), 0);
  require_error(program("ditsample", {"--checkpoint", scratch / "run", "--vae", kNames + "vae_names_new.safetensors",
                                      "--out", scratch / "out"}),
                {"ditsample: error: [autoencoder] channels of a level do not divide into groups", "norm_num_groups"});
  write_small_vae(scratch / "vae");
  require_error(
      program("ditsample", {"--checkpoint", scratch / "run", "--vae", scratch / "vae", "--out", scratch / "out"}),
      {"other channels than the model; got 4, expected 3"});
}

TEST_CASE("ditdata: the same bytes on ranks, and after the program was killed") {
  const TemporaryFolder scratch;
  const std::string images = scratch / "images";
  write_image_folder(images, 2, 5);
  REQUIRE_EXIT(run(ditdata(images, scratch / "one")), 0);
  const auto want = data_files(scratch / "one");
  for (const int ranks : {2, 4}) {
    const std::string out = scratch / std::to_string(ranks);
    REQUIRE_EXIT(run(mpirun(ranks, ditdata(images, out, {"--threads", "1"}))), 0);
    CHECK(data_files(out) == want);
  }
  // Enough of them that shards are missing when the kill comes.
  write_image_folder(scratch / "many", 2, 150);
  REQUIRE_EXIT(run(ditdata(scratch / "many", scratch / "whole")), 0);
  const auto whole = data_files(scratch / "whole");
  const Args one_thread = {"--threads", "1"};
  for (const int ranks : {1, 2}) {
    const std::string folder = scratch / ("killed" + std::to_string(ranks));
    const Args command = ditdata(scratch / "many", folder, one_thread);
    const Args job = on_ranks(ranks, command);
    Process killed(job);
    REQUIRE(wait_until([&] { return fs::exists(folder + "/latents_00000.safetensors") || !killed.running(); }));
    killed.send(SIGKILL);  // ranks end with their launcher
    killed.wait();
    CHECK(data_files(folder).size() < whole.size());
    REQUIRE_EXIT(run(job), 0);
    CHECK(data_files(folder) == whole);
  }
  // The same images by another path: what is there is what would be made.
  REQUIRE_EXIT(run(ditdata(images + "/", scratch / "one")), 0);
  CHECK(data_files(scratch / "one") == want);
  const std::string latin_1 = scratch / "im\xe9";  // no UTF-8
  fs::copy(images, latin_1, fs::copy_options::recursive);
  REQUIRE_EXIT(run(ditdata(latin_1, scratch / "one")), 0);
  REQUIRE_EXIT(run(ditdata(latin_1, scratch / "other")), 0);
  REQUIRE_EXIT(run(ditdata(latin_1, scratch / "other")), 0);
  write_image_folder(scratch / "fewer", 1, 5);
  require_error(ditdata(scratch / "fewer", scratch / "one"), {"a shard that these images do not have"});
}

TEST_CASE("ditdata: the latents of three bands of tiles, which have no names") {
  const TemporaryFolder scratch;
  fs::create_directory(scratch / "tiles");
  std::vector<uint16_t> numbers(size_t(5 * 4 * 16 * 16));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = uint16_t(i * 7919 % 4000);
  const std::vector<int64_t> labels = {0, 1, 1, 0, 1};
  ditrain::weights::write_safetensors(
      scratch / "tiles/a.safetensors",
      {{"images", "U16", {5, 4, 16, 16}, numbers.data()}, {"labels", "I64", {5}, labels.data()}},
      {{"bands", R"(["B2", "B3", "B4", "B8"])"}, {"scale", "[1, 2, 4, 8]"}, {"classes", R"(["field", "lake"])"}});
  REQUIRE_EXIT(run(program("ditdata", {"stats", scratch / "tiles"})), 0);
  require_error(ditdata(scratch / "tiles", scratch / "latents"),
                {"another number of bands than the VAE has channels; got 4, expected 3; try --bands "
                 "with 3 of B2, B3, B4, B8"});
  const Result made = require_ok(ditdata(scratch / "tiles", scratch / "latents", {"--bands", "B4,B3,B2"}));
  CHECK_THAT(made.out, Contains("5 of 5 images"));
  const ditrain::weights::SafetensorsFile last(scratch / "latents/latents_00001.safetensors");
  CHECK(last.tensor("latents").shape == std::vector<int64_t>{2, 4, 8, 8});
  const auto values = ditrain::weights::to_f32(last.tensor("latents"));
  const auto half = values.begin() + std::ptrdiff_t(values.size() / 2);
  CHECK_FALSE(std::equal(values.begin(), half, half));
  Args settings = latents_settings(scratch / "latents");
  settings.insert(settings.end(), {"data.latent_scale=0.5", "model.num_classes=2", "train.global_batch=5"});
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "run", 2, sets(settings))), 0);

  // Latents as eval.reference are multiplied as those of the data are.
  double distances[2];
  for (const bool named : {false, true}) {
    const std::string out = scratch / (named ? "named" : "own");
    Args of_latents = settings;
    of_latents.insert(of_latents.end(), {"sample.steps=2", "eval.fid_every_steps=1", "eval.fid_samples=5",
                                         "eval.reference=" + (named ? scratch / "latents" : "")});
    REQUIRE_EXIT(run(tiny_ditrain(out, 1, sets(of_latents))), 0);
    distances[named] = read_metrics(out).at(0).at("fid_pixels");
  }
  CHECK_THAT(distances[1], Catch::WithinRel(distances[0], 1e-6));

  // Decoded samples are compared with tiles in the values that the model learns.
  write_small_vae(scratch / "vae");
  Args measured = settings;
  measured.insert(measured.end(), {"sample.vae=" + (scratch / "vae"), "sample.steps=2", "eval.fid_every_steps=1",
                                   "eval.fid_samples=5", "eval.reference=" + (scratch / "tiles")});
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "measured", 1, sets(measured))), 0);
  CHECK(read_metrics(scratch / "measured").at(0).at("fid_pixels") < 1e4);  // of digital numbers it would be above 1e7
  // Tiles whose numbers mean something else would give another distance, and no sign of it.
  const std::vector<int16_t> others(numbers.begin(), numbers.end());
  const auto refused = [&](const char* type, const void* data, const char* scale, const char* text) {
    ditrain::weights::write_safetensors(scratch / "other.safetensors", {{"images", type, {5, 4, 16, 16}, data}},
                                        {{"bands", R"(["B2", "B3", "B4", "B8"])"}, {"scale", scale}});
    require_error(
        tiny_ditrain(scratch / type, 1, sets(measured) + sets({"eval.reference=" + (scratch / "other.safetensors")})),
        {"[eval.reference]", text});
  };
  refused("U16", numbers.data(), "[1, 2, 3, 8]",
          "other scales or offsets than the data; got B4 * 3 + 0, expected B4 * 4");
  refused("I16", others.data(), "[1, 2, 4, 8]", "the tiles have another type than the data; got i16, expected u16");

  // The model knows the tiles by itself: what a VAE decodes are digital numbers of named bands.
  for (const char* gone : {"tiles", "latents"}) fs::remove_all(scratch / gone);
  const auto draw = [&](const std::string& out, const Args& more) {
    return program("ditsample",
                   Args{"--checkpoint", scratch / "run", "--num", "2", "--steps", "2", "--out", scratch / out} + more);
  };
  const Result drawn = require_ok(draw("samples", {"--vae", scratch / "vae"}));
  CHECK_THAT(drawn.out, Contains("red, green, blue are B4 ("));
  const ditrain::weights::SafetensorsFile samples(scratch / "samples/samples.safetensors");
  CHECK(samples.tensor("images").dtype == "U16");
  CHECK(samples.metadata().at("bands") == R"(["B4","B3","B2"])");
  CHECK(samples.metadata().at("scale") == "[4.0,2.0,1.0]");
  if (ditrain::images::has_gdal()) {
    REQUIRE_EXIT(run(draw("tif", {"--vae", scratch / "vae", "--format", "geotiff"})), 0);
    ditrain::images::Raster tiff(scratch / "tif/000001.tif");
    CHECK(tiff.info().type == ditrain::images::PixelType::kU16);
    for (size_t b = 0; b < 3; ++b) {
      CHECK(tiff.info().bands.at(b).name == std::vector{"B4", "B3", "B2"}[b]);
      CHECK(tiff.info().bands[b].scale == std::vector{4., 2., 1.}[b]);
    }
    const auto row = ditrain::weights::row_range(samples.tensor("images"), 1, 1);
    const auto numbers = tiff.read({{0, 1, 2}, {0, 0, 16, 16}});
    REQUIRE(numbers.size() == row.bytes);
    CHECK(std::memcmp(numbers.data(), row.data, row.bytes) == 0);
  }
  const Result raw = run(draw("raw", {}));  // latents, whose channels are no bands
  REQUIRE_EXIT(raw, 0);
  CHECK(ditrain::weights::SafetensorsFile(scratch / "raw/samples.safetensors").tensor("samples").dtype == "F32");
}

TEST_CASE("data.vae: samples of a model of tiles are latents without a VAE, and digital numbers with one") {
  const TemporaryFolder scratch;
  fs::create_directory(scratch / "tiles");
  std::vector<uint8_t> numbers(size_t(5 * 3 * 16 * 16));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = uint8_t(i * 7919 % 251);
  ditrain::weights::write_safetensors(scratch / "tiles/a.safetensors",
                                      {{"images", "U8", {5, 3, 16, 16}, numbers.data()}},
                                      {{"bands", R"(["B2", "B3", "B4"])"}});
  write_small_vae(scratch / "vae");
  Args settings = latents_settings(scratch / "tiles");
  settings.insert(settings.end(),
                  {"data.kind=tiles", "data.vae=" + (scratch / "vae"), "model.num_classes=0", "train.global_batch=5"});
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "run", 1, sets(settings))), 0);
  const Args draw = {"--checkpoint", scratch / "run", "--num", "2", "--steps", "2"};
  REQUIRE_EXIT(run(program("ditsample", draw + Args{"--out", scratch / "raw"})), 0);
  const ditrain::weights::SafetensorsFile raw(scratch / "raw/samples.safetensors");
  CHECK(raw.tensor("samples").shape == std::vector<int64_t>{2, 4, 8, 8});
  REQUIRE_EXIT(run(program("ditsample", draw + Args{"--vae", scratch / "vae", "--out", scratch / "out"})), 0);
  const ditrain::weights::SafetensorsFile out(scratch / "out/samples.safetensors");
  CHECK(out.tensor("images").dtype == "U8");
  CHECK(out.tensor("images").shape == std::vector<int64_t>{2, 3, 16, 16});
}

TEST_CASE("ditsample: latents of three channels are not taken for pictures") {
  const TemporaryFolder scratch;
  const std::vector<float> values(8 * 3 * 8 * 8, 0.5f);
  fs::create_directory(scratch / "latents");
  ditrain::weights::write_safetensors(scratch / "latents/a.safetensors",
                                      {{"latents", "F32", {8, 3, 8, 8}, values.data()}});
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "run", 1,
                                sets({"data.kind=latents", "data.path=" + (scratch / "latents"), "model.in_channels=3",
                                      "model.input_size=8", "model.num_classes=0", "train.global_batch=4"}))),
               0);
  const Args draw = {"--checkpoint", scratch / "run", "--num", "2", "--steps", "2"};
  const Result drawn = require_ok(program("ditsample", draw + Args{"--out", scratch / "out"}));
  CHECK_THAT(drawn.out, Contains("the data are latents of 3 channels, which --vae would decode"));
  CHECK(read_json(scratch / "out/samples.json").at("latents") == true);
  const ditrain::weights::SafetensorsFile file(scratch / "out/samples.safetensors");
  CHECK(file.tensor("samples").shape == std::vector<int64_t>{2, 3, 8, 8});
  require_error(program("ditsample", draw + Args{"--npz", scratch / "x.npz", "--out", scratch / "none"}),
                {"3 channels of latents"});
  const Result compared = require_ok(
      program("ditfid", {"--real", scratch / "latents", "--generated", scratch / "out", "--metrics", "kid"}));
  CHECK_THAT(compared.out, Contains("2 latents in the shards") && !Contains("divided by 255"));
}

TEST_CASE("ditdata: bad input ends with 2 and says what to do") {
  const TemporaryFolder scratch;
  const std::string images = scratch / "images";
  write_image_folder(images, 1, 1);
  const auto refused = [&](const Args& arguments, const std::string& text) {
    require_error(program("ditdata", arguments), {"ditdata: error: ", text});
  };
  const std::string vae = kNames + "vae_names_new.safetensors",
                    dit = std::string(DITRAIN_GOLDEN_DIR) + "/dit_tiny.safetensors";
  const Args out = {"--out", scratch / "out"}, from = {"--from", images}, groups = {"--groups", "8"};
  refused({}, "a command is needed; expected make, encode, stats or inspect");
  refused({"mke"}, "unknown command; got 'mke', expected make, encode, stats or inspect; try make");
  refused(Args{"encode"} + out + from, "--vae is needed");
  refused(Args{"encode", "--vae", dit} + out + from, "weights of a DiT");
  refused(Args{"encode", "--vae", vae} + out + from, "multiple of 32");
  refused(Args{"encode", "--vae", vae} + groups + out + from, "scale factor");
  const Args known = Args{"encode", "--vae", vae, "--scale-factor", "1"} + groups;
  refused(known + out + from + Args{"--size", "15"}, "multiples of 2");
  refused(known + out + Args{"--from", scratch / "none"}, "none");
  refused(known + out + from + Args{"--posterior", "mode"}, "sample, mean or moments");
}

TEST_CASE("data.vae: encoding while training, the same on ranks, and pictures decoded by sample.vae") {
  const TemporaryFolder scratch;
  write_image_folder(scratch / "images", 2, 5);
  write_small_vae(scratch / "vae");
  const auto train = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> settings = latents_settings(scratch / "images");
    settings.insert(settings.end(), {"data.kind=folder", "data.vae=" + (scratch / "vae"), "model.num_classes=2",
                                     "train.global_batch=4"});
    settings.insert(settings.end(), more.begin(), more.end());
    return tiny_ditrain(scratch / out, 3, sets(settings));
  };
  const std::vector<std::string> watched = {"sample.every_steps=3", "sample.num_images=4", "sample.steps=2",
                                            "eval.every_steps=3",   "eval.num_images=4",   "sample.cfg_scale=1"};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> all = watched;
    all.push_back(more);
    return all;
  };
  const Result one = require_ok(train("one", with("sample.vae=" + (scratch / "vae"))));
  CHECK_THAT(one.out, Contains("latents of 4 x 8 x 8 for images of 16 x 16 (scale factor 0.5)") &&
                          Contains("autoencoders") && Contains("validation: mse"));
  CHECK_FALSE(one.out.find("of which the first channels are shown") != std::string::npos);
  const auto grid = ditrain::images::read_image(scratch / "one/samples/step_00000003.png");
  const Result raw = require_ok(train("raw", watched));
  CHECK_THAT(raw.out, Contains("latents, of which the first channels are shown: sample.vae decodes them"));
  CHECK(grid.width > ditrain::images::read_image(scratch / "raw/samples/step_00000003.png").width);
  CHECK(read_metrics(scratch / "one").back().at("val_mse") == read_metrics(scratch / "raw").back().at("val_mse"));

  // ditsample decodes with the VAE of the run, unless that is gone or not wanted.
  const auto draw_from_one = [&](const std::string& out, const Args& more) {
    return program("ditsample", Args{"--checkpoint", scratch / "one", "--num", "2", "--out", scratch / out} + more);
  };
  const Result decoded = require_ok(draw_from_one("decoded", {}));
  CHECK_THAT(decoded.out, Contains("section sample: sampler, steps, cfg_scale, cfg_channels, cfg_interval, vae"));
  CHECK(ditrain::images::read_image(scratch / "decoded/000000.png").width == 16);
  fs::rename(scratch / "vae", scratch / "away");
  require_error(draw_from_one("gone", {}), {"sample.vae: " + scratch / "vae", "--vae FILE, or --vae none"});
  REQUIRE_EXIT(run(draw_from_one("latents", {"--vae", "none"})), 0);
  CHECK(fs::exists(scratch / "latents/samples.safetensors"));
  fs::rename(scratch / "away", scratch / "vae");

  // Ranks draw what one process draws; the sums of gradients alone are in another order.
  const std::vector<std::string> reproducible = {"dist.reproducible=true", "train.micro_batch=1"};
  REQUIRE_EXIT(run(train("alone", reproducible)), 0);
  for (const int ranks : {2, 4}) {
    const std::string out = std::to_string(ranks);
    REQUIRE_EXIT(run(mpirun(ranks, train(out, reproducible))), 0);
    CHECK(different_files(checkpoint_of(scratch / out, 3), checkpoint_of(scratch / "alone", 3)).empty());
  }

  require_error(train("x", {"data.kind=latents"}), {"data.vae encodes pictures"});
  require_error(train("y", {"model.in_channels=3"}), {"this VAE has other channels than the model; got 4, expected 3"});
  // A file that tells its groups, not its scale.
  write_small_vae(scratch / "unscaled");
  write_file(scratch / "unscaled/config.json", R"({"norm_num_groups": 8})");
  require_error(train("z", {"data.vae=" + (scratch / "unscaled")}),
                {"the scale factor of this autoencoder's latents is not known",
                 "config.json with {\"scaling_factor\": 0.18215}"});
  const Args draw = {"--checkpoint", scratch / "raw",   "--num", "2", "--steps", "2",
                     "--out",        scratch / "drawn", "--vae"};
  require_error(program("ditsample", draw + Args{scratch / "unscaled"}),
                {"the scale factor of this autoencoder's latents is not known"});
  // Of another scale than data.vae's, with which the model was trained.
  write_file(scratch / "unscaled/config.json", R"({"norm_num_groups": 8, "scaling_factor": 0.25})");
  const Result other_scale = run(program("ditsample", draw + Args{scratch / "unscaled"}));
  REQUIRE_EXIT(other_scale, 2);
  CHECK_THAT(
      other_scale.err,
      Contains("another scale than those that the model learned; got scale factor 0.25, expected 0.5 (data.vae: "));
  // A run is refused for it before it makes its folder, and so is a dry run.
  const Args samples = train("w", {"sample.vae=" + (scratch / "unscaled"), "sample.every_steps=2"});
  for (const Args& more : {Args{}, Args{"--dry-run"}}) {
    require_error(samples + more, {"another scale than those that the model learned"});
  }
  CHECK_FALSE(fs::exists(scratch / "w"));
}

TEST_CASE("ditdata: mean and log-variance, from which training draws") {
  const TemporaryFolder scratch;
  write_image_folder(scratch / "images", 2, 5);
  require_ok(ditdata(scratch / "images", scratch / "latents", {"--flip", "--posterior", "moments"}));
  std::vector<std::string> settings = latents_settings(scratch / "latents");
  settings.insert(settings.end(), {"data.latent_scale=0.5", "model.num_classes=2", "train.global_batch=4",
                                   "dist.reproducible=true", "train.micro_batch=2"});
  const Result one = require_ok(tiny_ditrain(scratch / "one", 4, sets(settings)));
  CHECK_THAT(one.out, Contains(", flipped copies, drawn from mean and logvar"));
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(scratch / "two", 4, sets(settings)))), 0);
  CHECK(different_files(checkpoint_of(scratch / "one", 4), checkpoint_of(scratch / "two", 4)).empty());
}

TEST_CASE("ditdata: a second writer is refused with the first one's name, and neither is harmed") {
  const TemporaryFolder scratch;
  const std::string images = scratch / "images", out = scratch / "out";
  write_image_folder(images, 2, 20);
  Process first(ditdata(images, out));
  REQUIRE(wait_until([&] { return fs::exists(out + "/latents_00000.safetensors") || !first.running(); }));
  first.send(SIGSTOP);
  const Result second = run(ditdata(images, out));
  first.send(SIGCONT);
  CHECK(second.exit_code == 2);
  CHECK_THAT(second.err, Contains("another process writes to this folder; got host ") && Contains(", process "));
  CHECK(first.wait().exit_code == 0);
  REQUIRE_EXIT(run(ditdata(images, scratch / "one")), 0);
  CHECK(data_files(out) == data_files(scratch / "one"));
  require_error(ditdata(images, images + "/latents"), {"--out lies inside of --from"});
}

TEST_CASE("ditdata, ditsample: what does not fit into memory is refused before it starts") {
  const TemporaryFolder scratch;
  write_image_folder(scratch / "images", 1, 2);
  const RunOptions little{.max_data_bytes = int64_t{155} << 20};
  const Result r = run(ditdata(scratch / "images", scratch / "out"), little);
  CHECK(r.exit_code == 2);
  CHECK_THAT(r.err, Contains("[memory] encoders on 1 rank(s) of this node do not fit") && Contains("RLIMIT_DATA"));
  CHECK_FALSE(fs::exists(scratch / "out/stats.json"));

  REQUIRE_EXIT(run(tiny_ditrain(scratch / "run", 1)), 0);  // a model of pixels
  const Result drawn = run(program("ditsample", {"--checkpoint", scratch / "run", "--num", "65536", "--batch", "65536",
                                                 "--threads", "1", "--out", scratch / "drawn"}),
                           RunOptions{.max_data_bytes = int64_t{512} << 20});
  CHECK(drawn.exit_code == 2);
  CHECK_THAT(drawn.err,
             Contains("[memory] the model and 65536 image(s) at once on 1 rank(s) of this node do not fit") &&
                 Contains("a smaller --batch"));
  CHECK_FALSE(fs::exists(scratch / "drawn"));
}
