// ditsample, ditexport and ditverify on what ditrain writes and on the reference fixtures.
#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <set>

#include "ditrain/files/json.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/images/raster.hpp"
#include "ditrain/version.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "inputs.hpp"
#include "run.hpp"
#include "support/files.hpp"

using namespace ditrain::e2e;
using Catch::Contains;
using ditrain::weights::SafetensorsFile;

namespace {

Args ditsample(const std::string& checkpoint, const std::string& out, const Args& more = {}) {
  return program("ditsample", Args{"--checkpoint", checkpoint, "--out", out} + more);
}

// The content of a folder, without its own name.
std::vector<std::string> contents(const std::string& folder) {
  std::vector<std::string> all;
  for (const auto& [name, content] : folder_content(folder))
    if (fs::path(name).filename() != "samples.json") all.push_back(fs::path(name).filename().string() + content);
  return all;
}

std::set<std::string> tensor_names(const std::string& path) {
  std::set<std::string> names;
  const SafetensorsFile file(path);
  for (const auto& tensor : file.tensors()) names.insert(tensor.name);
  return names;
}

std::vector<float> tensor(const std::string& path, const std::string& name) {
  const SafetensorsFile file(path);
  return ditrain::weights::to_f32(file.tensor(name));
}

// A run whose averaged weights differ from the weights.
std::string trained(const TemporaryFolder& scratch) {
  const std::string out = scratch / "run";
  const Args fast = sets({"optimizer.lr=0.01", "optimizer.warmup_steps=0"});
  REQUIRE_EXIT(run(tiny_ditrain(out, 5, fast)), 0);
  return out;
}

std::vector<std::string> fixtures() {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(DITRAIN_GOLDEN_DIR))
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

TEST_CASE("ditsample: the same images for any number of ranks, batches and threads") {
  const TemporaryFolder scratch;
  const std::string checkpoint = trained(scratch);
  const auto draw = [&](const std::string& name, int ranks, const Args& more) {
    const Args common = {"--num",
                         "7",
                         "--labels",
                         "0,5,3",
                         "--steps",
                         "4",
                         "--cfg-scale",
                         "2",
                         "--clip",
                         "--seed",
                         "3",
                         "--grid",
                         scratch / name + "_grid.png",
                         "--npz",
                         scratch / name + ".npz"};
    const Args command = ditsample(checkpoint, scratch / name, common + more);
    REQUIRE_EXIT(run(on_ranks(ranks, command)), 0);
  };
  draw("one", 1, {});
  const auto images = contents(scratch / "one");
  REQUIRE(images.size() == 7);
  REQUIRE(std::set<std::string>(images.begin(), images.end()).size() == 7);
  const auto first = ditrain::images::read_image(scratch / "one/000000.png");
  REQUIRE((first.width == 32 && first.height == 32 && first.channels == 3));

  const auto facts = read_json(scratch / "one/samples.json");
  CHECK(facts.at("images") == 7);
  CHECK(facts.at("steps") == "4");
  CHECK(facts.at("guidance") == 2.0);
  CHECK(facts.at("seed") == 3);
  CHECK(facts.at("weights") == "ema");
  CHECK(facts.at("sampler") == "ddpm");
  CHECK(facts.at("guided_channels") == "all");
  CHECK(facts.at("guidance_interval") == nlohmann::json{0.0, 1.0});
  CHECK(facts.at("latents") == false);
  CHECK(facts.at("vae").is_null());

  // An array of the images says of itself how they were drawn, wherever it goes with that file.
  fs::create_directory(scratch / "moved");
  for (const char* ending : {".npz", ".npz.json"}) fs::copy(scratch / "one" + ending, scratch / "moved/x" + ending);
  CHECK(same_file(scratch / "moved/x.npz.json", scratch / "one/samples.json"));
  const Result measured = require_ok(program(
      "ditfid", {"--real", scratch / "moved/x.npz", "--generated", scratch / "moved/x.npz", "--metrics", "pr"}));
  CHECK_THAT(measured.out, Contains("\"seed\":3"));

  draw("two", 2, {});
  draw("four", 4, {"--batch", "1"});
  draw("threads", 1, {"--threads", "1", "--batch", "2"});
  for (const char* name : {"two", "four", "threads"}) {
    CAPTURE(name);
    CHECK(contents(scratch / name) == images);
    CHECK(same_file(scratch / name + "/samples.json", scratch / "one" + "/samples.json"));
    CHECK(same_file(scratch / name + ".npz", scratch / "one" + ".npz"));
    CHECK(same_file(scratch / name + ".npz.json", scratch / "one" + ".npz.json"));
    CHECK(same_file(scratch / name + "_grid.png", scratch / "one" + "_grid.png"));
  }
}

TEST_CASE("ditsample: what is asked for changes the images") {
  const TemporaryFolder scratch;
  const std::string checkpoint = trained(scratch);
  const Args common = {"--num", "2", "--labels", "1", "--steps", "4"};
  const auto draw = [&](const std::string& name, const Args& more) {
    REQUIRE_EXIT(run(ditsample(checkpoint, scratch / name, common + more)), 0);
    return contents(scratch / name);
  };
  const auto plain = draw("plain", {});
  CHECK(draw("again", {"--seed", "0"}) == plain);
  CHECK(draw("seed", {"--seed", "1"}) != plain);
  CHECK(draw("weights", {"--weights", "model"}) != plain);
  CHECK(draw("ddim", {"--sampler", "ddim"}) != plain);
  CHECK(draw("guided", {"--cfg-scale", "4"}) != plain);
}

TEST_CASE("ditsample: section sample of the checkpoint is the default, flags come before it, the log tells which") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(tiny_ditrain(out, 1, sets({"sample.steps=3", "sample.sampler=ddim", "sample.cfg_scale=3"}))), 0);
  const auto facts_of = [&](const std::string& name, const Args& more, const std::string& said) {
    const Result drawn = require_ok(ditsample(out, scratch / name, Args{"--num", "2"} + more));
    CHECK_THAT(drawn.out, Contains(said));
    return read_json(scratch / name + "/samples.json");
  };
  const auto own = facts_of(
      "own", {}, "of the checkpoint's config, section sample: sampler, steps, cfg_scale, cfg_channels, cfg_interval\n");
  CHECK((own.at("sampler") == "ddim" && own.at("steps") == "3" && own.at("guidance") == 3.0));
  const auto other =
      facts_of("other", {"--steps", "2", "--cfg-scale", "1"}, "of the command line: --steps, --cfg-scale\n");
  CHECK((other.at("sampler") == "ddim" && other.at("steps") == "2" && other.at("guidance") == 1.0));
  const auto within =
      facts_of("within", {"--cfg-interval", "0.2,0.8"}, "guidance 3 on all channels within [0.2, 0.8], seed 0");
  CHECK(within.at("guidance_interval") == nlohmann::json{0.2, 0.8});
  for (const char* bad : {"0.8,0.2", "0.5", "a,b", "0,nan"}) {
    require_error(ditsample(out, scratch / "bad", Args{"--cfg-interval", bad}), {"interval", "0.1"});
  }
}

TEST_CASE("ditsample: labels are numbers, or the names that classes had in training") {
  const TemporaryFolder scratch;
  write_image_folder(scratch / "images", 3, 4);  // class_0, class_1, class_2
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "run", 2,
                                sets({"data.kind=folder", "data.path=" + scratch / "images", "model.num_classes=auto",
                                      "model.input_size=16"}))),
               0);
  const auto draw = [&](const std::string& out, const std::string& labels) {
    return ditsample(scratch / "run", scratch / out, {"--num", "2", "--steps", "2", "--labels", labels});
  };
  REQUIRE_EXIT(run(draw("numbers", "2,0")), 0);
  REQUIRE_EXIT(run(draw("names", "class_2,class_0")), 0);
  CHECK(contents(scratch / "names") == contents(scratch / "numbers"));
  const auto facts = read_json(scratch / "names/samples.json");
  CHECK(facts.at("labels") == "2,0");
  CHECK(facts.at("label_names") == "class_2,class_0");
  require_error(draw("x", "class_7"), {"unknown labels; got class_7, expected some of class_0, class_1, class_2"});
  fs::rename(scratch / "images/class_2", scratch / "images/a");
  REQUIRE_EXIT(run(draw("again", "class_2,class_0")), 0);
  CHECK(contents(scratch / "again") == contents(scratch / "numbers"));
  const std::string file = scratch / "exported.safetensors";
  REQUIRE_EXIT(run(program("ditexport", {"--checkpoint", scratch / "run", "--out", file, "--format", "dit"})), 0);
  require_error(ditsample(file, scratch / "x", {"--num", "2", "--labels", "class_2"}),
                {"names of classes are not known here", "numbers below 3"});
}

TEST_CASE("ditsample: guidance is off for a model without classes, and refused if it is asked for") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run";
  REQUIRE_EXIT(run(tiny_ditrain(out, 1, sets({"model.num_classes=0"}))), 0);
  const Args few = {"--num", "2", "--steps", "2"};
  const Result drawn = require_ok(ditsample(out, scratch / "samples", few));
  CHECK_THAT(drawn.out, Contains("guidance is off: the model has no classes"));
  CHECK(read_json(scratch / "samples/samples.json").at("guidance") == 1.0);
  require_error(ditsample(out, scratch / "guided", few + Args{"--cfg-scale", "2"}),
                {"--cfg-scale needs a model that knows labels", "--cfg-scale 2"});
  CHECK_FALSE(fs::exists(scratch / "guided"));
}

TEST_CASE("ditsample: values that are not finite are counted in an error, no image shows them") {
  const TemporaryFolder scratch;
  const std::string file = scratch / "model.safetensors";
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "run", 1)), 0);
  REQUIRE_EXIT(run(program("ditexport", {"--checkpoint", scratch / "run", "--out", file, "--format", "dit"})), 0);
  rewrite_tensors(file, [](auto& tensors) {  // finite, but guidance overflows
    auto& bias = tensors.at("final_layer.linear.bias");
    const std::vector<float> huge(bias.data.size() / sizeof(float), 3e38f);
    std::memcpy(bias.data.data(), huge.data(), bias.data.size());
  });
  fs::copy(scratch / "run/config.yaml", scratch / "config.yaml");
  const Args draw = {"--num", "2", "--steps", "2", "--clip", "off"};
  for (const int ranks : {1, 2}) {
    const std::string out = scratch / std::to_string(ranks);
    const Args command = ditsample(file, out, draw);
    require_error(on_ranks(ranks, command),
                  {"values in", "images are not finite, the first in image", "diverged in training"}, 1);
    CHECK(fs::is_empty(out));
  }
}

TEST_CASE("ditsample: killed on the way, it leaves no file that looks whole") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "images", npz = scratch / "x.npz";
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "run", 1)), 0);
  Process killed(ditsample(scratch / "run", out, {"--num", "100000", "--steps", "2", "--batch", "1", "--npz", npz}));
  REQUIRE(wait_until([&] { return fs::exists(out + "/000001.png") || !killed.running(); }));
  killed.send(9);
  CHECK(killed.wait().exit_code == 128 + 9);
  CHECK_FALSE(fs::exists(npz));
  CHECK_FALSE(fs::exists(npz + ".json"));
  CHECK_FALSE(fs::exists(out + "/samples.json"));
  REQUIRE_EXIT(run(ditsample(scratch / "run", scratch / "again", {"--num", "1", "--steps", "2", "--npz", npz})), 0);
}

TEST_CASE("ditsample: the command goes on with the samples of a program that was ended, and no other command does") {
  const TemporaryFolder scratch;
  const std::string checkpoint = trained(scratch);
  const auto draw = [&](const std::string& name, const Args& more, const char* num = "12") {
    return ditsample(
        checkpoint, scratch / name,
        Args{"--num", num, "--steps", "200", "--npz", scratch / name + ".npz", "--grid", scratch / name + "_grid.png"} +
            more);
  };
  Process ended(draw("parts", {"--batch", "1"}));
  REQUIRE(wait_until([&] { return fs::exists(scratch / "parts/000002.png") || !ended.running(); }));
  ended.send(SIGINT);
  ended.wait();
  REQUIRE_FALSE(fs::exists(scratch / "parts/samples.json"));
  const Result distance = require_ok(program("ditfid", {"--real", scratch / "parts", "--generated", scratch / "parts",
                                                        "--features", "pixels", "--allow-small", "--threads", "1"}));
  CHECK_THAT(distance.err, Contains("samples of a ditsample that has not ended or was ended"));
  require_error(draw("parts", {"--seed", "1"}), {"and that drew others: seed was 0, is 1"});
  require_error(draw("parts", {"--weights", "model"}), {"weights was \"ema\", is \"model\""});
  require_error(draw("parts", {}, "13"), {"images was 12, is 13"});
  write_file(scratch / "parts/000012.png", "of another");
  require_error(draw("parts", {}), {"--out holds samples already", "000012.png"});
  fs::remove(scratch / "parts/000012.png");

  const auto first = fs::last_write_time(scratch / "parts/000000.png");
  const Result went_on = require_ok(on_ranks(2, draw("parts", {"--batch", "2"})));
  CHECK_THAT(went_on.out, Contains("images of 12 that " + scratch / "parts" + " holds"));
  CHECK(fs::last_write_time(scratch / "parts/000000.png") == first);
  CHECK_FALSE(fs::exists(scratch / "parts/unfinished.json"));
  require_ok(draw("whole", {}));
  CHECK(data_files(scratch / "parts") == data_files(scratch / "whole"));
  for (const char* of : {"/samples.json", ".npz", "_grid.png"}) {
    CAPTURE(of);
    CHECK(same_file(scratch / "parts" + of, scratch / "whole" + of));
  }
  require_error(draw("parts", {}), {"--out holds samples already"});
}

TEST_CASE("ditsample: wrong flags and inputs") {
  const TemporaryFolder scratch;
  const std::string checkpoint = trained(scratch), out = scratch / "images";
  const auto refused = [&](const Args& command, const std::vector<std::string>& texts) {
    require_error(command, texts);
    CHECK_FALSE(fs::exists(out));
  };
  refused(ditsample(checkpoint, out, {"--nun", "3"}), {"ditsample: error:", "--nun", "did you mean --num?"});
  refused(ditsample(checkpoint, out, {"--num", "0"}), {"--num", "got '0'"});
  refused(ditsample(checkpoint, out, {"--labels", "0,8"}), {"label out of range; got 8, expected 0 to 7"});
  refused(ditsample(checkpoint, out, {"--steps", "2000"}), {"more steps than there are; got \"2000\""});
  refused(ditsample(checkpoint, out, {"--sampler", "euler"}), {"euler", "ddim"});
  refused(ditsample(checkpoint, out, {"--format", "jpeg"}), {"'jpeg'", "png or geotiff"});
  refused(ditsample(checkpoint, out, {"--grid", scratch / "grid.jpg"}), {"--grid", "grid.jpg", "ends in .png"});
  refused(ditsample(checkpoint, out, {"--grid", out + "/grid.png"}), {"--grid would lie among the samples of --out"});
  refused(ditsample(checkpoint + "/checkpoints/step_00000005/model.safetensors", out, {"--weights", "ema"}),
          {"--weights chooses a file of a checkpoint"});
  refused(ditsample(checkpoint, out, {"--npz", scratch / "x"}), {"--npz", "ends in .npz"});
  refused(ditsample(scratch / "nowhere", out), {scratch / "nowhere" + " does not exist"});
  refused(program("ditsample", {"--out", out}), {"--checkpoint is needed"});

  fs::create_directory(out);
  write_file(out + "/000000.png", "precious");
  require_error(ditsample(checkpoint, out, {"--num", "1", "--steps", "2"}),
                {"holds samples already, of a program that was ended before it was done"});
  CHECK(read_file(out + "/000000.png") == "precious");

  const std::string shared = scratch / "shared";
  Process first(ditsample(checkpoint, shared, {"--num", "4096", "--steps", "250"}));
  REQUIRE(wait_until([&] { return fs::exists(shared + "/.lock") || !first.running(); }));
  const Result second = run(ditsample(checkpoint, shared, {"--num", "1", "--steps", "2"}));
  first.send(SIGKILL);
  REQUIRE_EXIT(second, 2);
  CHECK_THAT(second.err, Contains("process " + std::to_string(first.pid())));
}

TEST_CASE("ditexport: dit has the names, shapes and values of the checkpoint and is enough to sample from") {
  const TemporaryFolder scratch;
  const std::string run_folder = trained(scratch), checkpoint = checkpoint_of(run_folder, 5);
  const std::string ema = scratch / "ema.safetensors", model = scratch / "model.safetensors",
                    half = scratch / "half.safetensors";
  const auto exported = [&](const std::string& out, const Args& more) {
    return program("ditexport", Args{"--checkpoint", run_folder, "--out", out, "--format", "dit"} + more);
  };
  REQUIRE_EXIT(run(exported(ema, {})), 0);
  REQUIRE_EXIT(run(exported(model, {"--weights", "model"})), 0);
  REQUIRE_EXIT(run(exported(half, {"--dtype", "bf16"})), 0);
  for (const std::string& path : {ema, model, half})
    CHECK(tensor_names(path) == tensor_names(checkpoint + "/model.safetensors"));
  for (const std::string& name : tensor_names(ema)) {
    CAPTURE(name);
    CHECK(tensor(ema, name) == tensor(checkpoint + "/ema.safetensors", name));
    CHECK(tensor(model, name) == tensor(checkpoint + "/model.safetensors", name));
    CHECK(SafetensorsFile(half).tensor(name).dtype == "BF16");
  }
  CHECK(tensor(ema, "blocks.0.mlp.fc1.weight") != tensor(model, "blocks.0.mlp.fc1.weight"));

  const Args few = {"--num", "2", "--steps", "3"};
  REQUIRE_EXIT(run(ditsample(run_folder, scratch / "from_run", few)), 0);
  REQUIRE_EXIT(run(ditsample(ema, scratch / "from_export", few)), 0);
  CHECK(contents(scratch / "from_export") == contents(scratch / "from_run"));
  // What was loaded, not what is loaded by default.
  const auto facts_of = [&](const std::string& weights) {
    REQUIRE_EXIT(run(ditsample(weights, scratch / "facts", few)), 0);
    const auto facts = read_json(scratch / "facts/samples.json");
    fs::remove_all(scratch / "facts");
    return facts.at("weights").get<std::string>() + " of step " + ditrain::files::json_text(facts.at("step"));
  };
  CHECK(facts_of(run_folder) == "ema of step 5");
  CHECK(facts_of(ema) == "ema of step 5");
  CHECK(facts_of(model) == "model of step 5");
  CHECK(facts_of(checkpoint + "/model.safetensors") == "model of step 5");

  require_error(program("ditexport", {"--checkpoint", model, "--out", scratch / "x.safetensors", "--weights", "ema"}),
                {"--weights chooses a file of a checkpoint"});
  require_error(exported(scratch / "plain.pt", {}), {"load with safetensors.torch.load_file"});
  fs::create_directories(scratch / "tiles");
  const float zero = 0;
  ditrain::weights::write_safetensors(scratch / "tiles/a.safetensors", {{"images", "F32", {1, 1, 1, 1}, &zero}}, {});
  require_error(exported(scratch / "tiles/x.safetensors", {}), {"--out lies among tiles or latents"});

  const std::string before = read_file(ema);
  require_error(exported(ema, {}), {"exists already"});
  CHECK(read_file(ema) == before);
}

TEST_CASE("ditexport: an average of another width comes from the snapshots of a run, also of one that was resumed") {
  const TemporaryFolder scratch;
  const std::string out = scratch / "run", file = scratch / "average.safetensors";
  const Args settings = sets({"ema.snapshots_every=2", "checkpoint.every_steps=1", "checkpoint.keep_last=1",
                              "dist.shard_optimizer=true", "train.micro_batch=2"});
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(out, 5, settings))), 0);
  const std::string whole = scratch / "whole";
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(whole, 7, settings))), 0);
  REQUIRE_EXIT(run(mpirun(2, tiny_ditrain(out, 7, settings + Args{"--resume", "auto"}))), 0);
  for (const char* step : {"2", "4", "6", "7"}) {
    const std::string averages = std::string("/snapshots/step_0000000") + step + "/averages.safetensors";
    CHECK(same_file(out + averages, whole + averages));
  }
  const auto exported = [&](const std::string& checkpoint, const std::string& width) {
    fs::remove(file);
    return run(program("ditexport", {"--checkpoint", checkpoint, "--out", file, "--ema-width", width}));
  };
  // Those that the run kept are themselves.
  REQUIRE_EXIT(exported(out, "0.1"), 0);
  const auto largest_difference = [&](const std::string& step) {
    double most = 0;
    const std::string stored = out + "/snapshots/" + step + "/averages.safetensors";
    for (const std::string& name : tensor_names(file)) {
      if (name == "pos_embed") continue;
      const auto a = tensor(file, name), b = tensor(stored, name + ".average_0.10");
      for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double(a[i]) - double(b[i])));
    }
    return most;
  };
  CHECK(largest_difference("step_00000007") < 1e-6);
  CHECK(largest_difference("step_00000004") > 1e-5);
  // A table of positions that the run began with is part of it, although no snapshot has it.
  ditrain::weights::SafetensorsFile start(file);
  std::vector<std::vector<float>> values;
  std::vector<ditrain::weights::TensorToWrite> tensors;
  for (const auto& view : start.tensors()) {
    values.push_back(ditrain::weights::to_f32(view));
    if (view.name == "pos_embed") values.back()[3] = 2.5f;
  }
  for (size_t i = 0; i < values.size(); ++i)
    tensors.push_back({start.tensors()[i].name, "F32", start.tensors()[i].shape, values[i].data()});
  ditrain::weights::write_safetensors(scratch / "start.safetensors", tensors);
  REQUIRE_EXIT(run(tiny_ditrain(scratch / "other", 2,
                                sets({"ema.snapshots_every=1", "train.init_from=" + scratch / "start.safetensors"}))),
               0);
  REQUIRE_EXIT(exported(scratch / "other", "0.1"), 0);
  CHECK(tensor(file, "pos_embed")[3] == 2.5f);
  CHECK(run(program("ditverify", {"--checkpoint", out + "/snapshots/step_00000004"})).exit_code == 0);
  require_error(tiny_ditrain(scratch / "no", 12, {"--resume", out + "/snapshots/step_00000004"}),
                {"a snapshot of averages, not a checkpoint"});
  const std::string from_inside = "cd " + out + "/snapshots && " + program("ditverify", {}).front();
  CHECK(run({"/bin/sh", "-c", from_inside + " --checkpoint step_00000004"}).exit_code == 0);
  REQUIRE_EXIT(exported(out, "0.1"), 0);
  REQUIRE_EXIT(run(ditsample(file, scratch / "samples", {"--num", "2", "--steps", "3"})), 0);
  REQUIRE_EXIT(exported(out + "/snapshots/step_00000004", "0.1"), 0);
  CHECK(largest_difference("step_00000004") < 1e-6);
  REQUIRE_EXIT(exported(out, "0.07"), 0);
  // An older one that is damaged is left out; the newest must be whole.
  flip_bit(out + "/snapshots/step_00000004/averages.safetensors", 8000);
  const Result without = exported(out, "0.07");
  REQUIRE_EXIT(without, 0);
  CHECK_THAT(without.err, Contains("left out of the average") && Contains("step_00000004"));
  flip_bit(out + "/snapshots/step_00000007/averages.safetensors", 8000);
  CHECK(exported(out, "0.07").exit_code == 2);

  const Result wide = exported(out, "0.5");
  REQUIRE_EXIT(wide, 2);
  CHECK_THAT(wide.err, Contains("--ema-width") && Contains("0.28"));
  const Result none = exported(checkpoint_of(out, 7), "0.1");
  REQUIRE_EXIT(none, 2);
  CHECK_THAT(none.err, Contains("has no snapshots") && Contains("ema.snapshots_every"));
  require_error(tiny_ditrain(out, 9, sets({"checkpoint.every_steps=1"}) + Args{"--resume", "auto"}),
                {"ema.snapshots_every"});
}

TEST_CASE("ditexport: diffusers has that library's folders, names and thirds of qkv") {
  const TemporaryFolder scratch;
  const std::string run_folder = trained(scratch), checkpoint = checkpoint_of(run_folder, 5), out = scratch / "pipe";
  const Args command = program("ditexport", {"--checkpoint", checkpoint, "--out", out, "--format", "diffusers"});
  REQUIRE_EXIT(run(command), 0);
  const auto config = read_json(out + "/transformer/config.json");
  CHECK(config.at("_class_name") == "DiTTransformer2DModel");
  CHECK(config.at("num_layers") == 2);
  CHECK(config.at("num_attention_heads").get<int>() * config.at("attention_head_dim").get<int>() == 32);
  CHECK(config.at("sample_size") == 32);
  CHECK(config.at("norm_type") == "ada_norm_zero");
  CHECK(config.at("num_embeds_ada_norm") == 8);
  CHECK(read_json(out + "/scheduler/scheduler_config.json").contains("_class_name"));

  const std::string weights = out + "/transformer/diffusion_pytorch_model.safetensors";
  const std::set<std::string> names = tensor_names(weights);
  for (const char* name :
       {"pos_embed.proj.weight", "proj_out_1.weight", "proj_out_2.bias", "transformer_blocks.1.norm1.linear.weight",
        "transformer_blocks.0.norm1.emb.class_embedder.embedding_table.weight",
        "transformer_blocks.1.norm1.emb.timestep_embedder.linear_2.bias", "transformer_blocks.0.ff.net.0.proj.weight",
        "transformer_blocks.0.ff.net.2.weight", "transformer_blocks.1.attn1.to_out.0.weight"})
    CHECK(names.contains(name));
  CHECK_FALSE(names.contains("pos_embed"));
  std::vector<float> qkv;
  for (const char* part : {"to_q", "to_k", "to_v"}) {
    const auto third = tensor(weights, std::string("transformer_blocks.1.attn1.") + part + ".weight");
    qkv.insert(qkv.end(), third.begin(), third.end());
  }
  CHECK(qkv == tensor(checkpoint + "/ema.safetensors", "blocks.1.attn.qkv.weight"));

  require_error(program("ditexport", {"--checkpoint", checkpoint, "--out", scratch / "x", "--format", "onnx"}),
                {"ditexport: error:", "'onnx'", "dit, uvit or diffusers"});
}

TEST_CASE("ditverify: passes reference fixtures, fails on changed values, refuses a cut-off file") {
  const TemporaryFolder scratch;
  std::vector<std::string> all = fixtures();
  std::erase_if(all, [](const std::string& path) {  // those that take seconds; the tests of verify have them
    for (const char* slow : {"vae_sd", "fid_inception", "train_traj"})
      if (path.find(slow) != path.npos) return true;
    return false;
  });
  REQUIRE(all.size() >= 8);
  require_ok(program("ditverify", all + Args{"--json", scratch / "report.json"}), {.timeout_s = 200});
  const auto report = read_json(scratch / "report.json").at("fixtures");
  REQUIRE(report.size() == all.size());
  for (const auto& fixture : report) {
    CAPTURE(ditrain::files::json_text(fixture));
    CHECK(fixture.at("passed") == true);
    CHECK(fixture.at("compared") > 0);
    CHECK(fixture.at("worst").at("max_rel") <= fixture.at("worst").at("tolerance"));
  }

  const std::string pos_embed = std::string(DITRAIN_GOLDEN_DIR) + "/pos_embed.safetensors";
  const std::string changed = scratch / "changed.safetensors", cut = scratch / "cut.safetensors";
  write_file(changed, [&] {
    std::string bytes = read_file(pos_embed);
    // The last element of an expected tensor: its sign and exponent.
    const SafetensorsFile file(pos_embed);
    const auto& view = file.tensor("pos.64_4");
    const auto at = bytes.find(std::string(reinterpret_cast<const char*>(view.data), view.bytes)) + view.bytes - 1;
    bytes[at] = char(bytes[at] ^ 0x40);
    return bytes;
  }());
  const Result failed = run(program("ditverify", {changed}));
  REQUIRE_EXIT(failed, 1);
  CHECK_THAT(failed.out, Contains("pos.64_4") && Contains("FAILED"));

  write_file(cut, read_file(pos_embed).substr(0, 300000));
  const Result refused = run(program("ditverify", {cut, pos_embed}));
  REQUIRE_EXIT(refused, 2);
  CHECK_THAT(refused.err, Contains("cut.safetensors"));
  CHECK_THAT(refused.out, Contains("1 of 2 fixtures passed"));  // the sound one is run all the same
}

TEST_CASE("programs: all answer to help and version and refuse what they do not know") {
  for (const char* name : {"ditrain", "ditsample", "ditexport", "ditfid", "ditimport", "ditverify"}) {
    CAPTURE(name);
    const Result help = require_ok(program(name, {"--help"}));
    CHECK_THAT(help.out, Catch::StartsWith(name) && Contains("Usage: ") && Contains("--version"));
    const Result version = require_ok(program(name, {"--version"}));
    CHECK(version.out == std::string(name) + " " + ditrain::kVersion + "\n");
    const Result wrong = run(program(name, {"--versio"}));
    REQUIRE_EXIT(wrong, 2);
    CHECK_THAT(wrong.err, Catch::StartsWith(std::string(name) + ": error: ") && Contains("did you mean --version?"));
    CHECK(wrong.out.empty());
  }
}

TEST_CASE("ditsample: --format geotiff writes the values of all bands, the same images as the PNGs") {
  const TemporaryFolder scratch;
  if (!ditrain::images::has_gdal()) {
    require_error(ditsample("none", scratch / "tif", {"--format", "geotiff"}), {"libgdal-dev"});
    return;
  }
  const std::string checkpoint = trained(scratch);
  const Args few = {"--num", "2", "--steps", "3", "--seed", "4"};
  REQUIRE_EXIT(run(ditsample(checkpoint, scratch / "tif", few + Args{"--format", "geotiff"})), 0);
  REQUIRE_EXIT(run(ditsample(checkpoint, scratch / "png", few)), 0);
  ditrain::images::Raster tiff(scratch / "tif/000001.tif");
  const auto png = ditrain::images::read_image(scratch / "png/000001.png");
  const auto pixels = tiff.read({{0, 1, 2}, {0, 0, png.width, png.height}});
  REQUIRE(pixels.size() == 4 * png.pixels.size());
  const size_t plane = png.pixels.size() / 3;
  for (size_t i = 0; i < png.pixels.size(); ++i) {
    float value;
    std::memcpy(&value, pixels.data() + 4 * (i % 3 * plane + i / 3), sizeof value);
    REQUIRE(ditrain::images::to_u8(value) == png.pixels[i]);
  }
  require_error(ditsample(checkpoint, scratch / "tif", few + Args{"--format", "geotiff"}),
                {"--out holds samples already"});
}
