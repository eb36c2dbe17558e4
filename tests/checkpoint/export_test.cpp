#include "ditrain/checkpoint/export.hpp"

#include <catch2/catch.hpp>
#include <filesystem>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/checkpoint/checkpoint.hpp"
#include "ditrain/config/option_table.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "eval/tiny_model.hpp"
#include "support/files.hpp"
#include "support/message_of.hpp"
#include "support/save_checkpoint.hpp"

using namespace ditrain;
using Catch::Matchers::Contains;
using ditrain::test::message_of;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;
using autograd::Parameter;
using autograd::ParameterStore;

config::Config tiny_run() {
  config::Config config;
  config.model = test::tiny_config();
  config.data.path = "/home/someone/private";
  return config;
}

/// A run folder with one checkpoint whose weights and average differ.
struct TinyRun {
  explicit TinyRun(const config::Config& config = tiny_run(), const std::vector<std::string>& class_names = {}) {
    nn::Model model(config.model);
    ParameterStore& parameters = model.parameters();
    parameters.allocate(ParameterStore::For::kTraining, DType::kF32, {.states = optim::state_arrays()});
    nn::initialise(model, 1);
    test::fill_random(parameters, parameters.values, 1);
    test::fill_random(parameters, parameters.ema, 2);
    checkpoint::CheckpointState state;
    state.step = state.optimizer_step = 40;
    state.config_yaml = config::to_yaml(config);
    state.class_names = class_names;
    checkpoint = test::save_checkpoint(folder / "run/checkpoints", state, parameters);
  }
  std::string run() const { return folder / "run"; }

  TemporaryFolder folder;
  std::string checkpoint;
};

std::vector<float> weights_of(nn::Model& model) {
  std::vector<float> all;
  for (const Parameter* p : model.parameters().state_dict()) {
    const std::vector<float> values = to_vector(p->value);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<float> expected_weights(uint64_t seed) {
  return weights_of(*test::random_model(test::tiny_config(), seed));  // the position table is the same for any seed
}

std::vector<float> tensor(const weights::SafetensorsFile& file, const std::string& name) {
  return weights::to_f32(file.tensor(name));
}

json read_json(const std::string& path) { return files::parse_json(get_file(path)); }

std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("what models are given decides about the meaning of their outputs, not where it lies") {
  config::Config ours, theirs;
  ours.data.condition = {"./tiles", "VV", "valid"};
  theirs.data.condition = {"VV", "valid"};  // as an export has it
  theirs.train.steps = 7;
  ours.diffusion.prediction = diffusion::named<diffusion::Prediction>("epsilon");  // what auto is for ddpm
  CHECK(checkpoint::differences_of_meaning(ours, theirs).empty());
  theirs.data.condition = {"VH", "valid"};
  const std::vector<config::Difference> found = checkpoint::differences_of_meaning(ours, theirs);
  REQUIRE(found.size() == 1);
  CHECK(found.front().key == "data.condition");
  ours.data.condition = theirs.data.condition;
  ours.diffusion.prediction = diffusion::named<diffusion::Prediction>("x0");
  REQUIRE(checkpoint::differences_of_meaning(ours, theirs).size() == 1);
}

TEST_CASE("a run that encodes leaves the scale of its latents to its VAE, whose number an export tells") {
  config::Config run, exported, latents;
  run.data.kind = dataset::find_kind("folder"), run.data.vae = "vae.safetensors";
  exported.data.kind = latents.data.kind = dataset::find_kind("latents");
  exported.data.latent_scale = 0.18215, latents.data.latent_scale = 0.5;
  CHECK(checkpoint::differences_of_meaning(run, exported).empty());
  CHECK(checkpoint::differences_of_meaning(exported, run).empty());
  REQUIRE(checkpoint::differences_of_meaning(exported, latents).size() == 1);
  run.data.latent_scale = 0.5;
  CHECK(checkpoint::differences_of_meaning(run, exported).size() == 1);
  config::Config pixels;
  pixels.data.kind = dataset::find_kind("folder");
  CHECK(checkpoint::differences_of_meaning(pixels, exported).size() == 1);

  config::Config guided = tiny_run();
  guided.data.kind = run.data.kind, guided.data.vae = run.data.vae;
  const TinyRun tiny(guided);
  config::Config of_export = tiny_run();
  of_export.data.kind = exported.data.kind, of_export.data.latent_scale = 0.18215;
  CHECK(checkpoint::load_guide(tiny.run(), of_export, {}) != nullptr);
}

TEST_CASE("an export says what the public network cannot load, and how others call it") {
  nn::ModelConfig model = test::tiny_config();
  CHECK(checkpoint::obstacles_of_reference(model).empty());
  model.patch_overlap = 2, model.norm = nn::Norm::kRms;
  CHECK(checkpoint::obstacles_of_reference(model) ==
        std::vector<std::string>{"model.patch_overlap 2 (0 before training makes it loadable)",
                                 "model.norm rms (layer before training makes it loadable)"});
  model.kind = nn::ModelKind::kUvit;
  CHECK(checkpoint::obstacles_of_reference(model).empty());
  diffusion::Config d;
  CHECK(checkpoint::describe_calls(d) == "ddpm: t from 0 to 999, predicts epsilon");
  d.process = diffusion::named<diffusion::ProcessKind>("flow");
  d.prediction = diffusion::named<diffusion::Prediction>("x0");
  CHECK(checkpoint::describe_calls(d) == "flow: t from 0 (noise) to 1 (data), predicts x0");
}

TEST_CASE("weights are found from a run, a checkpoint and a file") {
  const TinyRun tiny;
  for (const std::string& path : {tiny.run(), tiny.run() + "/checkpoints", tiny.checkpoint}) {
    INFO(path);
    const checkpoint::WeightsSource ema = checkpoint::find_weights(path, checkpoint::Weights::kEma),
                                    model = checkpoint::find_weights(path, checkpoint::Weights::kModel);
    CHECK(ema.step == 40);
    CHECK(ema.config.model.hidden_size == 32);
    CHECK(weights_of(*checkpoint::load_model(ema)) == expected_weights(2));
    CHECK(weights_of(*checkpoint::load_model(model)) == expected_weights(1));
  }
  const checkpoint::WeightsSource file =
      checkpoint::find_weights(tiny.checkpoint + "/model.safetensors", checkpoint::Weights::kEma);
  CHECK(file.step == 40);
  CHECK(file.weights == "model");
  CHECK(weights_of(*checkpoint::load_model(file)) == expected_weights(1));
}

TEST_CASE("weights without a config, or none at all, are refused") {
  const TinyRun tiny;
  CHECK_THROWS_WITH(checkpoint::find_weights(tiny.folder / "absent", checkpoint::Weights::kEma),
                    Contains("does not exist"));
  fs::create_directory(tiny.folder / "empty");
  CHECK_THROWS_AS(checkpoint::find_weights(tiny.folder / "empty", checkpoint::Weights::kEma), InputError);
  const std::string lonely = tiny.folder / "lonely.safetensors";
  fs::copy(tiny.checkpoint + "/ema.safetensors", lonely);
  CHECK_THROWS_WITH(checkpoint::find_weights(lonely, checkpoint::Weights::kEma),
                    Contains("no config") && Contains("try ditimport --from " + lonely + " --out DIR"));
  CHECK_THROWS_WITH(checkpoint::find_weights(DITRAIN_GOLDEN_DIR "/pt_files/train.pt", checkpoint::Weights::kEma),
                    Contains("train.pt is a file of PyTorch") && Contains("try ditimport --from "));
  put_file(tiny.folder / "config.yaml", config::to_yaml(tiny_run()));
  CHECK(weights_of(*checkpoint::load_model(checkpoint::find_weights(lonely, checkpoint::Weights::kEma))) ==
        expected_weights(2));
}

TEST_CASE("weights beside a config that leaves its classes to the data are refused") {
  const TinyRun tiny;
  const std::string lonely = tiny.folder / "lonely.safetensors";
  fs::copy(tiny.checkpoint + "/ema.safetensors", lonely);
  config::Config wanted = tiny_run();
  wanted.model.num_classes = nn::kClassesOfData;
  put_file(tiny.folder / "config.yaml", config::to_yaml(wanted));
  CHECK_THROWS_WITH(checkpoint::find_weights(lonely, checkpoint::Weights::kEma),
                    Contains("leaves to the data") && Contains("checkpoints/step_N"));
}

TEST_CASE("weights with and without scales of queries and keys are not taken for each other") {
  const auto run_with = [](nn::QkNorm qk_norm) {
    config::Config config = tiny_run();
    config.model.qk_norm = qk_norm;
    return std::make_unique<TinyRun>(config);
  };
  const auto refusal = [&](nn::QkNorm of_file, nn::QkNorm of_model) -> std::string {
    const auto tiny = run_with(of_file);
    checkpoint::WeightsSource source = checkpoint::find_weights(tiny->run(), checkpoint::Weights::kEma);
    source.config.model.qk_norm = of_model;
    return message_of([&] { checkpoint::load_model(source); }, "accepted");
  };
  using enum nn::QkNorm;
  for (const nn::QkNorm same : {kNone, kRms, kLayer}) CHECK(refusal(same, same) == "accepted");
  CHECK_THAT(refusal(kNone, kRms), Contains("attn.q_norm.weight is missing") && Contains("try model.qk_norm: none"));
  CHECK_THAT(refusal(kRms, kLayer), Contains("attn.q_norm.bias is missing") && Contains("try model.qk_norm: rms"));
  CHECK_THAT(refusal(kRms, kNone), Contains("is not one of this model's") && Contains("try model.qk_norm: rms"));
  CHECK_THAT(refusal(kLayer, kRms), Contains("_norm.bias is not one") && Contains("try model.qk_norm: layer"));
}

TEST_CASE("weights of another norm, MLP or position are refused with the key to set") {
  const auto refusal = [&](auto change_file, auto change_model) -> std::string {
    config::Config config = tiny_run();
    change_file(config.model);
    const TinyRun tiny(config);
    checkpoint::WeightsSource source = checkpoint::find_weights(tiny.run(), checkpoint::Weights::kEma);
    source.config.model = tiny_run().model;
    change_model(source.config.model);
    return message_of([&] { checkpoint::load_model(source); }, "accepted");
  };
  const auto none = [](nn::ModelConfig&) {};
  const auto rms = [](nn::ModelConfig& c) { c.norm = nn::Norm::kRms; };
  const auto swiglu = [](nn::ModelConfig& c) { c.mlp = nn::Mlp::kSwiglu; };
  const auto rope = [](nn::ModelConfig& c) { c.position = nn::Position::kRope; };
  CHECK(refusal(rms, rms) == "accepted");
  CHECK(refusal(swiglu, swiglu) == "accepted");
  CHECK(refusal(rope, rope) == "accepted");
  CHECK_THAT(refusal(none, rms), Contains("norm1.weight is missing") && Contains("try model.norm: layer"));
  CHECK_THAT(refusal(rms, none), Contains("is not one of this model's") && Contains("try model.norm: rms"));
  CHECK_THAT(refusal(none, swiglu), Contains("mlp.w12.weight is missing") && Contains("try model.mlp: gelu"));
  CHECK_THAT(refusal(swiglu, none), Contains("mlp.fc1.weight is missing") && Contains("try model.mlp: swiglu"));
  CHECK_THAT(refusal(rope, none), Contains("pos_embed is missing") && Contains("try model.position: rope"));
  CHECK_THAT(refusal(none, rope), Contains("pos_embed is not one") && Contains("try model.position: sincos"));
}

TEST_CASE("dit export: public names and shapes, and it loads without anything beside it") {
  const TinyRun tiny;
  const checkpoint::WeightsSource source = checkpoint::find_weights(tiny.run(), checkpoint::Weights::kEma);
  const auto model = checkpoint::load_model(source);
  const std::string path = tiny.folder / "new/export.safetensors";
  checkpoint::export_public(path, *model, source.config, DType::kF32);
  CHECK(entries(tiny.folder / "new") == std::vector<std::string>{"export.safetensors"});

  const weights::SafetensorsFile file(path);
  CHECK(file.metadata().at("format") == "pt");
  CHECK(get_file(path).find("/home/someone") == std::string::npos);
  const auto expected = model->parameters().state_dict();
  CHECK(file.tensors().size() == expected.size());
  for (const Parameter* p : expected) {
    INFO(p->name);
    CHECK(file.tensor(p->name).dtype == "F32");
    CHECK(file.tensor(p->name).shape == p->shape);
    CHECK(tensor(file, p->name) == to_vector(p->value));
  }
  CHECK(file.tensor("pos_embed").shape == std::vector<int64_t>{1, 16, 32});
  CHECK(file.tensor("y_embedder.embedding_table.weight").shape == std::vector<int64_t>{9, 32});

  const checkpoint::WeightsSource again = checkpoint::find_weights(path, checkpoint::Weights::kEma);
  CHECK(weights_of(*checkpoint::load_model(again)) == expected_weights(2));
  CHECK((again.weights.empty() && again.step == -1));
  checkpoint::export_public(tiny.folder / "of_step.safetensors", *model, source.config, DType::kF32, source);
  const checkpoint::WeightsSource of_step =
      checkpoint::find_weights(tiny.folder / "of_step.safetensors", checkpoint::Weights::kModel);
  CHECK((of_step.weights == "ema" && of_step.step == 40));
  // All paths stay at home, and what is left can be read.
  config::Config with_paths = source.config;
  for (const config::Option& option : config::option_table())
    if (option.expected.find("path") != std::string::npos && option.name() != "data.condition")
      option.set(with_paths, {{option.name() == "log.prometheus" ? "/home/someone/x.prom" : "/home/someone/x"}}, "");
  with_paths.eval.fid_every_steps = 10, with_paths.eval.features = config::FidFeatures::kInception;
  checkpoint::export_public(tiny.folder / "paths.safetensors", *model, with_paths, DType::kF32);
  CHECK(get_file(tiny.folder / "paths.safetensors").find("/home/someone") == std::string::npos);
  CHECK_NOTHROW(checkpoint::find_weights(tiny.folder / "paths.safetensors", checkpoint::Weights::kEma));
  // A guide is a path, which stays at home, or the model's own routes.
  const auto guide_of = [&](const std::string& guide) {
    config::Config config = source.config;
    config.sample.guide = guide;
    const std::string other = tiny.folder / ("guided_" + std::to_string(guide.size()) + ".safetensors");
    checkpoint::export_public(other, *model, config, DType::kF32);
    return checkpoint::find_weights(other, checkpoint::Weights::kEma).config.sample.guide;
  };
  CHECK(guide_of("/home/someone/guide").empty());
  CHECK(guide_of(std::string(config::kRoutedGuide)) == config::kRoutedGuide);
}

TEST_CASE("a guide has the weights of the EMA, and learnt the same images as the model that it guides") {
  const TinyRun tiny;
  const std::string log = tiny.folder / "log.txt";
  log::open_file(log);
  config::Config guided = tiny_run();
  CHECK(weights_of(*checkpoint::load_guide(tiny.run(), guided, {})) == expected_weights(2));
  CHECK(checkpoint::load_guide(std::string(config::kRoutedGuide), guided, {}) == nullptr);
  CHECK(get_file(log).empty());
  guided.data.path = "/home/someone/other";
  CHECK(checkpoint::load_guide(tiny.run(), guided, {}) != nullptr);
  log::close_file();
  CHECK_THAT(get_file(log),
             Contains("trained on /home/someone/private") && Contains("the model on /home/someone/other"));
  // Folders that are there can be told apart.
  for (const char* name : {"one", "two"}) fs::create_directory(tiny.folder / name);
  fs::create_directory_symlink("one", tiny.folder / "link");
  config::Config taught = tiny_run();
  taught.data.path = tiny.folder / "one";
  const TinyRun guide(taught);
  guided.data.path = tiny.folder / "link";
  CHECK(checkpoint::load_guide(guide.run(), guided, {}) != nullptr);
  guided.data.path = tiny.folder / "two";
  CHECK_THROWS_WITH(checkpoint::load_guide(guide.run(), guided, {}),
                    Contains("other data than the model") && Contains("an export of the guide"));
  const TinyRun named(tiny_run(), {"cat", "dog"});
  CHECK(checkpoint::load_guide(named.run(), tiny_run(), {"cat", "dog"}) != nullptr);
  CHECK_THROWS_WITH(checkpoint::load_guide(named.run(), tiny_run(), {"cat", "frog"}),
                    Contains("labels of the guide mean other classes") && Contains("label 1 was dog, is frog"));
  guided.diffusion.noise_scale = 2;
  CHECK_THROWS_WITH(checkpoint::load_guide(tiny.run(), guided, {}), Contains("diffusion.noise_scale"));
}

TEST_CASE("bf16 export holds the nearest bf16 numbers and loads again") {
  const TinyRun tiny;
  const checkpoint::WeightsSource source = checkpoint::find_weights(tiny.run(), checkpoint::Weights::kModel);
  const auto model = checkpoint::load_model(source);
  const std::string path = tiny.folder / "half.safetensors";
  checkpoint::export_public(path, *model, source.config, DType::kBF16);
  const weights::SafetensorsFile file(path);
  for (const weights::TensorView& view : file.tensors()) CHECK(view.dtype == "BF16");
  std::vector<float> rounded = expected_weights(1);
  for (float& v : rounded) v = to_f32(to_bf16(v));
  const auto loaded = checkpoint::load_model(checkpoint::find_weights(path, checkpoint::Weights::kEma));
  CHECK(weights_of(*loaded) == rounded);
  checkpoint::export_diffusers(tiny.folder / "diffusers", *loaded, source.config, DType::kF32);
  CHECK(fs::exists(tiny.folder / "diffusers/transformer/config.json"));
}

TEST_CASE("diffusers export: names, thirds of qkv, repeated embedders") {
  const TinyRun tiny;
  const checkpoint::WeightsSource source = checkpoint::find_weights(tiny.run(), checkpoint::Weights::kEma);
  const auto model = checkpoint::load_model(source);
  const std::string out = tiny.folder / "diffusers/";
  checkpoint::export_diffusers(out, *model, source.config, DType::kF32);
  CHECK(entries(out) == std::vector<std::string>{"scheduler", "transformer"});

  const weights::SafetensorsFile file(out + "transformer/diffusion_pytorch_model.safetensors");
  ParameterStore& p = model->parameters();
  constexpr size_t kOfModel = 6, kOfBlock = 19;  // 9 linear layers and the label table
  CHECK(file.tensors().size() == kOfModel + 2 * kOfBlock);
  const auto same = [&](const std::string& name, const std::string& ours) {
    INFO(name);
    CHECK(file.tensor(name).shape == p.find(ours).shape);
    CHECK(tensor(file, name) == to_vector(p.find(ours).value));
  };
  for (const std::string part : {"weight", "bias"}) {
    same("pos_embed.proj." + part, "x_embedder.proj." + part);
    same("proj_out_1." + part, "final_layer.adaLN_modulation.1." + part);
    same("proj_out_2." + part, "final_layer.linear." + part);
    for (const std::string i : {"0", "1"}) {
      const std::string theirs = "transformer_blocks." + i + ".", ours = "blocks." + i + ".";
      same(theirs + "norm1.emb.timestep_embedder.linear_1." + part, "t_embedder.mlp.0." + part);
      same(theirs + "norm1.emb.timestep_embedder.linear_2." + part, "t_embedder.mlp.2." + part);
      same(theirs + "norm1.emb.class_embedder.embedding_table.weight", "y_embedder.embedding_table.weight");
      same(theirs + "norm1.linear." + part, ours + "adaLN_modulation.1." + part);
      same(theirs + "attn1.to_out.0." + part, ours + "attn.proj." + part);
      same(theirs + "ff.net.0.proj." + part, ours + "mlp.fc1." + part);
      same(theirs + "ff.net.2." + part, ours + "mlp.fc2." + part);
      std::vector<float> qkv;
      for (const char* third : {"to_q.", "to_k.", "to_v."}) {
        const std::vector<float> rows = tensor(file, theirs + "attn1." + third + part);
        CHECK(rows.size() == (part == "weight" ? 32u * 32u : 32u));
        qkv.insert(qkv.end(), rows.begin(), rows.end());
      }
      CHECK(qkv == to_vector(p.find(ours + "attn.qkv." + part).value));
    }
  }
}

TEST_CASE("diffusers export: configs of model, scheduler and pipeline") {
  config::Config config = tiny_run();
  config.model.in_channels = 4, config.model.num_classes = 1000;
  config.diffusion.num_steps = 500;
  config.diffusion.prediction = diffusion::named<diffusion::Prediction>("x0");
  const TinyRun tiny(config);
  const checkpoint::WeightsSource source = checkpoint::find_weights(tiny.run(), checkpoint::Weights::kEma);
  const std::string out = tiny.folder / "diffusers";
  checkpoint::export_diffusers(out, *checkpoint::load_model(source), source.config, DType::kBF16);

  const json model = read_json(out + "/transformer/config.json");
  const std::map<std::string, int64_t> sizes = {
      {"attention_head_dim", 16}, {"num_attention_heads", 2}, {"in_channels", 4},  {"out_channels", 8},
      {"num_layers", 2},          {"patch_size", 8},          {"sample_size", 32}, {"num_embeds_ada_norm", 1000}};
  for (const auto& [key, value] : sizes) {
    INFO(key);
    CHECK(model.at(key) == value);
  }
  CHECK(model.at("_class_name") == "DiTTransformer2DModel");
  CHECK(model.at("norm_eps") == 1e-6);
  CHECK(model.at("activation_fn") == "gelu-approximate");
  const json scheduler = read_json(out + "/scheduler/scheduler_config.json");
  CHECK(scheduler.at("num_train_timesteps") == 500);
  CHECK(scheduler.at("beta_end") == Approx(0.04));
  CHECK(scheduler.at("prediction_type") == "sample");
  const json index = read_json(out + "/model_index.json");
  CHECK(index.at("_class_name") == "DiTPipeline");
  CHECK(index.at("vae") == json::array({"diffusers", "AutoencoderKL"}));
  CHECK(index.at("id2label").size() == 1000);
  config.model.num_classes = 10;  // which DiTPipeline, whose null label is 1000, would read wrongly
  const TinyRun few(config);
  const checkpoint::WeightsSource of_few = checkpoint::find_weights(few.run(), checkpoint::Weights::kEma);
  checkpoint::export_diffusers(out + "_of_few", *checkpoint::load_model(of_few), of_few.config, DType::kF32);
  CHECK(fs::exists(out + "_of_few/transformer/config.json"));
  CHECK_FALSE(fs::exists(out + "_of_few/model_index.json"));
  const weights::SafetensorsFile file(out + "/transformer/diffusion_pytorch_model.safetensors");
  CHECK(file.tensor("pos_embed.proj.weight").dtype == "BF16");
}

TEST_CASE("diffusers export names the prediction as diffusers does") {
  for (const auto& [ours, theirs] : {std::pair{"epsilon", "epsilon"}, {"x0", "sample"}, {"v", "v_prediction"}}) {
    TemporaryFolder folder;
    config::Config config = tiny_run();
    config.diffusion.prediction = diffusion::named<diffusion::Prediction>(ours);
    checkpoint::export_diffusers(folder / "out", *test::random_model(test::tiny_config()), config, DType::kF32);
    CHECK(read_json(folder / "out/scheduler/scheduler_config.json").at("prediction_type") == theirs);
  }
}

TEST_CASE("diffusers export refuses what that class cannot express") {
  const auto refused = [](auto change, const std::string& text) {
    nn::ModelConfig config = test::tiny_config();
    change(config);
    CHECK_THROWS_WITH(checkpoint::check_diffusers(config), Contains(text));
    TemporaryFolder folder;
    const auto model = test::random_model(config);
    CHECK_THROWS_AS(checkpoint::export_diffusers(folder / "out", *model, {}, DType::kF32), InputError);
    CHECK(entries(folder.path()).empty());
  };
  refused([](auto& c) { c.input_height = 16; }, "not square; got 16 x 32");
  refused([](auto& c) { c.num_classes = 0; }, "without classes");
  refused([](auto& c) { c.class_dropout = 0; }, "dropped labels");
  refused([](auto& c) { c.qk_norm = nn::QkNorm::kRms; },
          "tensor blocks.0.attn.q_norm.weight; expected model.qk_norm: none");
  refused([](auto& c) { c.norm = nn::Norm::kRms; }, "tensor blocks.0.norm1.weight; expected model.norm: layer");
  refused([](auto& c) { c.mlp = nn::Mlp::kSwiglu; }, "tensor blocks.0.mlp.w12.weight; expected model.mlp: gelu");
  refused([](auto& c) { c.position = nn::Position::kRope; }, "model.position: rope, expected model.position: sincos");
  refused([](auto& c) { c.mlp_ratio = 2; }, "MLP; got 64, expected 128");
  refused([](auto& c) { c.patch_overlap = 1; }, "patches that overlap; got 1, expected model.patch_overlap: 0");
  refused([](auto& c) { c.patch_bottleneck = 8; },
          "tensor x_embedder.proj1.weight; expected model.patch_bottleneck: 0");
  CHECK_NOTHROW(checkpoint::check_diffusers(test::tiny_config()));
  CHECK_NOTHROW(checkpoint::check_diffusers(diffusion::Config{}));
  const diffusion::Config flow{.process = diffusion::named<diffusion::ProcessKind>("flow")};
  CHECK_THROWS_WITH(checkpoint::check_diffusers(flow), Contains("process flow") && Contains("try --format dit"));

  const auto model = test::random_model(test::tiny_config());
  {
    const Pin<float> table(model->parameters().find("pos_embed").value);
    table[7] += 0.5f;
  }
  TemporaryFolder folder;
  CHECK_THROWS_WITH(checkpoint::export_diffusers(folder / "out", *model, {}, DType::kF32),
                    Contains("pos_embed element 7"));
}

TEST_CASE("an export overwrites nothing") {
  TemporaryFolder folder;
  const auto model = test::random_model(test::tiny_config());
  put_file(folder / "old", "precious");
  CHECK_THROWS_WITH(checkpoint::export_public(folder / "old", *model, tiny_run(), DType::kF32),
                    Contains("exists already"));
  CHECK_THROWS_WITH(checkpoint::export_diffusers(folder / "old", *model, tiny_run(), DType::kF32),
                    Contains("exists already"));
  CHECK(get_file(folder / "old") == "precious");
  CHECK(entries(folder.path()) == std::vector<std::string>{"old"});
  CHECK_THROWS_AS(checkpoint::export_public(folder / "old/in", *model, tiny_run(), DType::kF32), InputError);
}
