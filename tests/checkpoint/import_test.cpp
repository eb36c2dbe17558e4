// Published weights into checkpoints: files of other programs, adapted to other data, and damaged ones.
#include "ditrain/checkpoint/import.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>

#include "ditrain/base/error.hpp"
#include "ditrain/checkpoint/checkpoint.hpp"
#include "ditrain/checkpoint/export.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/nn/patch_embed.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "eval/tiny_model.hpp"
#include "support/compare.hpp"
#include "support/files.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using Catch::Contains;
using checkpoint::DitFile;
using checkpoint::DitHints;
using checkpoint::import_weights;
using checkpoint::Weights;

namespace {

namespace fs = std::filesystem;

std::string golden(const std::string& name) { return std::string(DITRAIN_GOLDEN_DIR) + "/" + name; }

// The weights of a file, to change and to save again.
struct LooseWeights {
  struct Entry {
    Shape shape;
    std::vector<float> values;
  };
  std::map<std::string, Entry> tensors;

  explicit LooseWeights(const std::string& path) {
    const weights::SafetensorsFile file(path);
    for (const weights::TensorView& t : file.tensors()) tensors[t.name] = {t.shape, weights::to_f32(t)};
  }
  explicit LooseWeights(nn::Model& model) {
    for (const autograd::Parameter* p : model.parameters().state_dict())
      tensors[p->name] = {p->full_shape, to_vector(p->value)};
  }
  void save(const std::string& path, const std::string& prefix = "") const {
    std::vector<weights::TensorToWrite> list;
    for (const auto& [name, t] : tensors) list.push_back({prefix + name, "F32", t.shape, t.values.data()});
    fs::remove(path);
    weights::write_safetensors(path, list);
  }
};

std::vector<float> in(const std::string& checkpoint, const std::string& name) {
  return weights::to_f32(weights::SafetensorsFile(checkpoint + "/ema.safetensors").tensor(name));
}

std::string refusal(const std::string& path, const std::vector<std::string>& sets = {}) {
  const TemporaryFolder folder;
  try {
    import_weights({.from = path, .out = folder / "out", .sets = sets});
  } catch (const InputError& e) {
    CHECK(fs::is_empty(folder.path()));
    return e.what();
  }
  return "accepted";
}

std::vector<double> output_of(nn::Model& model, const weights::SafetensorsFile& f) {
  const weights::TensorView& x = f.tensor("x");
  const int64_t batch = x.shape[0];
  test::Workers crew;
  nn::ModelPass pass(model, batch, autograd::Mode::kInference);
  pass.allocate();
  copy(from_values(x.shape, weights::to_f32(x)), pass.image());
  const std::vector<int64_t> t = weights::to_i64(f.tensor("t"));
  pass.t().assign(t.begin(), t.end()), pass.conditions() = conditions_of(weights::to_i64(f.tensor("y")));
  pass.forward(crew.ctx);
  return test::to_f64(to_vector(pass.out()));
}

bool has_line(const std::vector<std::string>& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& l) { return l.find(part) != l.npos; });
}

}  // namespace

TEST_CASE("weights of diffusers give the output of the reference, not that of diffusers' own network") {
  const TemporaryFolder folder;
  const checkpoint::Imported imported = import_weights({.from = golden("diffusers_dit"), .out = folder / "dit"});
  CHECK(has_line(imported.notes, "by 127, where the reference and ditrain divide by 128"));
  CHECK(has_line(imported.notes, "eps 1e-05, which here is 1e-06"));
  const nn::ModelConfig& m = imported.config.model;
  CHECK((m.num_heads == 4 && m.input_height == 8 && m.num_classes == 10 && m.class_dropout > 0 && m.learn_sigma));
  CHECK_NOTHROW(checkpoint::check_checkpoint(folder / "dit"));

  const auto model = checkpoint::load_model(checkpoint::find_weights(folder / "dit", Weights::kModel));
  const weights::SafetensorsFile want(golden("diffusers_dit/outputs.safetensors"));
  const std::vector<double> out = output_of(*model, want);
  CHECK(test::compare(out, weights::to_f64(want.tensor("out_dit.f64")), 1e-5));
  CHECK_FALSE(test::compare(out, weights::to_f64(want.tensor("out.f64")), 0.1));
}

TEST_CASE("an imported checkpoint is one to resume from: moments of 0, average and weights the same") {
  const TemporaryFolder folder;
  const checkpoint::Imported imported = import_weights({.from = golden("diffusers_dit/"), .out = folder / "deep/dit"});
  nn::Model model(imported.config.model);
  autograd::ParameterStore& parameters = model.parameters();
  parameters.allocate(autograd::ParameterStore::For::kTraining, DType::kF32, {.states = optim::state_arrays()});
  checkpoint::load_training_state(folder / "deep/dit", parameters);
  CHECK(to_vector(parameters.values) == to_vector(parameters.ema));
  CHECK(test::max_abs(test::to_f64(to_vector(parameters.state("exp_avg").data))) == 0);
  CHECK(checkpoint::read_checkpoint_state(folder / "deep/dit").step == 0);
  CHECK_THROWS_WITH(import_weights({.from = golden("diffusers_dit"), .out = folder / "deep/dit"}),
                    Contains("exists already"));
}

TEST_CASE("PyTorch checkpoints: the average or the weights, both formats, names with prefixes") {
  const TemporaryFolder folder;
  const std::vector<std::string> heads = {"model.num_heads=2"};
  const auto import = [&](const std::string& file, const std::string& out, Weights weights) {
    return import_weights({.from = golden("pt_files/" + file), .out = folder / out, .weights = weights, .sets = heads});
  };
  CHECK(has_line(import("train.pt", "ema", Weights::kEma).notes, "ema/* is taken"));
  CHECK(has_line(import("train.pt", "model", Weights::kModel).notes, "model/* is taken"));
  const checkpoint::Imported legacy = import("train_legacy.pt", "legacy", Weights::kEma);
  CHECK(legacy.config.model.num_classes == 5);
  CHECK(legacy.config.data.kind->name == "folder");
  CHECK((get_file(folder / "legacy/model.safetensors") == get_file(folder / "ema/model.safetensors")));
  import("module_prefix.pt", "prefix", Weights::kEma);
  const std::string name = "blocks.0.attn.qkv.weight";
  std::vector<float> twice = in(folder / "prefix", name);
  for (float& v : twice) v *= 2;
  CHECK((in(folder / "ema", name) == twice));  // as the fixture was made
  CHECK(has_line(import("lightning.pt", "lightning", Weights::kModel).notes, "6 rows of labels"));
  CHECK((get_file(folder / "lightning/ema.safetensors") == get_file(folder / "prefix/ema.safetensors")));
}

TEST_CASE("weights of DiT and of SiT have the same tensors: keys say what they predict, and a note asks") {
  const TemporaryFolder folder;
  const auto import = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"model.num_heads=2"};
    sets.insert(sets.end(), more.begin(), more.end());
    return import_weights({.from = golden("pt_files/train.pt"), .out = folder / out, .sets = sets});
  };
  const checkpoint::Imported noise = import("noise", {}),
                             velocity = import("velocity", {"diffusion.process=flow", "model.learn_sigma=false"});
  CHECK(has_line(noise.notes, "taken as a model that predicts noise"));
  CHECK_FALSE(has_line(velocity.notes, "taken as a model that predicts noise"));
  CHECK((noise.config.sample.steps == "250" && has_line(noise.notes, "samples are drawn in 250 steps")));
  CHECK(velocity.config.sample.steps == config::Config().sample.steps);
  const config::Config saved =
      config::parse_config(checkpoint::read_checkpoint_state(folder / "velocity").config_yaml, "state.json");
  CHECK(saved.diffusion.process->name == "flow");
  CHECK((saved.diffusion.prediction != nullptr && saved.diffusion.prediction->name == "velocity"));
  CHECK(in(folder / "velocity", "blocks.0.attn.qkv.weight") == in(folder / "noise", "blocks.0.attn.qkv.weight"));
  const std::vector<float> both = in(folder / "noise", "final_layer.linear.bias"),
                           first = in(folder / "velocity", "final_layer.linear.bias");
  CHECK(first.size() * 2 == both.size());
  CHECK_THROWS_WITH(import("sigma", {"diffusion.process=flow"}), Contains("model.learn_sigma: false"));
  const checkpoint::Imported again = import_weights({.from = folder / "velocity", .out = folder / "again"});
  CHECK_FALSE(has_line(again.notes, "taken as a model that predicts noise"));
}

TEST_CASE("export, import, export gives the same bytes") {
  const TemporaryFolder folder;
  config::Config config;
  config.model = test::tiny_config();
  config.diffusion.num_steps = 500;
  config = config::parse_config(config::to_yaml(config), "tiny.yaml");  // as all configs come
  const auto model = test::random_model(config.model);
  const auto again = [&](const std::string& from, const std::string& to) {
    import_weights({.from = folder / from, .out = folder / "checkpoint"});
    auto source = checkpoint::find_weights(folder / "checkpoint", Weights::kEma);
    fs::rename(folder / "checkpoint", folder / ("of_" + to));
    source.file = folder / ("of_" + to) + "/ema.safetensors";
    return std::pair(checkpoint::load_model(source), source.config);
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string name = dtype == DType::kF32 ? "f32" : "bf16";
    checkpoint::export_public(folder / name, *model, config, dtype);
    const auto [loaded, of_dit] = again(name, name + "2");
    checkpoint::export_public(folder / (name + "2"), *loaded, of_dit, dtype);
    CHECK((get_file(folder / name) == get_file(folder / (name + "2"))));

    checkpoint::export_diffusers(folder / (name + "_d"), *model, config, dtype);
    const auto [of_folder, of_diffusers] = again(name + "_d", name + "_d2");
    CHECK(of_diffusers.diffusion.num_steps == 500);
    checkpoint::export_diffusers(folder / (name + "_d2"), *of_folder, of_diffusers, dtype);
    for (const char* file : {"transformer/diffusion_pytorch_model.safetensors", "transformer/config.json",
                             "scheduler/scheduler_config.json"})
      CHECK((get_file(folder / (name + "_d/") + file) == get_file(folder / (name + "_d2/") + file)));
  }
}

TEST_CASE("sizes follow from shapes, heads from the width or a key") {
  const TemporaryFolder folder;
  nn::ModelConfig c = test::tiny_config();
  c.hidden_size = 384, c.num_heads = 6, c.depth = 1, c.mlp_ratio = 2, c.learn_sigma = false, c.class_dropout = 0;
  c.qk_norm = nn::QkNorm::kNone, c.num_classes = 7;
  const auto model = test::random_model(c);
  const std::string path = folder / "w.safetensors";
  LooseWeights(*model).save(path);
  const nn::ModelConfig found = DitFile(path, Weights::kEma, {.num_classes = 7, .class_dropout = 0}).config().model;
  CHECK((found.hidden_size == 384 && found.num_heads == 6 && found.depth == 1 && found.mlp_size() == 768));
  CHECK((found.patch_size == 8 && found.in_channels == 3 && found.input_height == 32 && found.input_width == 32));
  CHECK((found.num_classes == 7 && found.class_dropout == 0 && !found.learn_sigma && found.name == "custom"));
  CHECK(DitFile(path, Weights::kEma).config().model.num_classes == 6);  // one row for dropped labels

  c.qk_norm = nn::QkNorm::kLayer, c.hidden_size = 64, c.num_heads = 4, c.input_height = 16, c.num_classes = 0;
  LooseWeights(*test::random_model(c)).save(path);
  CHECK_THAT(refusal(path), Contains("8 tokens, which is no square") && Contains("--set model.input_size=[H,W]"));
  const nn::ModelConfig wide = DitFile(path, Weights::kEma, {.input_height = 16, .input_width = 32}).config().model;
  CHECK((wide.qk_norm == nn::QkNorm::kLayer && wide.num_heads == 4 && wide.num_classes == 0));
  CHECK((wide.input_height == 16 && wide.input_width == 32));

  LooseWeights tiny(*test::random_model(test::tiny_config()));
  tiny.save(path);
  CHECK_THAT(refusal(path), Contains("number of attention heads") && Contains("--set model.num_heads=N"));
  tiny.tensors.erase("pos_embed");
  tiny.save(path);
  CHECK_THAT(refusal(path, {"model.num_heads=2"}), Contains("size of the model's input is not in the file"));
  CHECK(refusal(path, {"model.num_heads=2", "model.input_size=32"}) == "accepted");
  CHECK_THAT(refusal(path, {"model.num_heds=2"}), Contains("num_heads"));
}

TEST_CASE("other classes, channels and sizes are adapted by the stated rules, each told in a line") {
  const TemporaryFolder folder;
  const auto source = test::random_model(test::tiny_config());  // 3 x 32 x 32, 8 classes
  LooseWeights(*source).save(folder / "w.safetensors");
  const std::string out = folder / "out";
  const checkpoint::Imported imported =
      import_weights({.from = folder / "w.safetensors",
                      .out = out,
                      .sets = {"model.num_heads=2", "model.num_classes=3", "model.in_channels=4",
                               "model.input_size=[16, 32]", "data.kind=latents"}});
  CHECK(has_line(imported.notes, "8 classes in the file, 3 here: a new label table, with the file's row of dropped"));
  CHECK(has_line(imported.notes, "--set model.num_classes=8 keeps the file's, if the labels mean the same"));
  CHECK(has_line(imported.notes, "3 channels in the file, 4 here"));
  CHECK(has_line(imported.notes, "input of 32 x 32 in the file, 16 x 32 here: a new position table"));

  const auto of_file = [&](const std::string& name) { return to_vector(source->parameters().find(name).value); };
  CHECK(in(out, "blocks.1.attn.qkv.weight") == of_file("blocks.1.attn.qkv.weight"));
  CHECK(in(out, "pos_embed") == nn::sincos_position_table(32, 2, 4));
  constexpr int64_t C = 32, P = 8, PP = P * P;
  const std::vector<float> labels = in(out, "y_embedder.embedding_table.weight"),
                           old_labels = of_file("y_embedder.embedding_table.weight");
  REQUIRE(labels.size() == 4 * C);
  CHECK(std::equal(labels.begin() + 3 * C, labels.end(), old_labels.begin() + 8 * C));
  CHECK_FALSE(std::equal(labels.begin(), labels.begin() + C, old_labels.begin()));

  // The sum over channels of equal inputs stays; outputs are means.
  const std::vector<float> patches = in(out, "x_embedder.proj.weight"), old = of_file("x_embedder.proj.weight");
  REQUIRE(patches.size() == C * 4 * PP);
  for (const int64_t row : {0, 31})
    for (const int64_t k : {0, 63}) {
      double sum = 0, old_sum = 0;
      for (int64_t c = 0; c < 4; ++c) sum += patches[size_t((row * 4 + c) * PP + k)];
      for (int64_t c = 0; c < 3; ++c) old_sum += old[size_t((row * 3 + c) * PP + k)];
      CHECK(sum == Approx(old_sum).epsilon(1e-5).margin(1e-7));
      CHECK(patches[size_t(row * 4 * PP + k)] == patches[size_t((row * 4 + 3) * PP + k)]);
    }
  const std::vector<float> last = in(out, "final_layer.linear.bias"), old_last = of_file("final_layer.linear.bias");
  REQUIRE(last.size() == 8 * PP);
  for (const int64_t k : {0, 63})
    for (const int64_t half : {0, 1}) {  // prediction and variance
      double mean = 0;
      for (int64_t c = 0; c < 3; ++c) mean += old_last[size_t(k * 6 + half * 3 + c)] / 3;
      for (int64_t c = 0; c < 4; ++c) CHECK(last[size_t(k * 8 + half * 4 + c)] == Approx(mean));
    }
}

TEST_CASE("variants of patches: a file tells the bottleneck, a key the overlap, and both are adapted") {
  const TemporaryFolder folder;
  nn::ModelConfig c = test::tiny_config();
  c.patch_overlap = 2, c.patch_bottleneck = 5;
  const auto source = test::random_model(c);
  const std::string path = folder / "w.safetensors", out = folder / "out";
  LooseWeights(*source).save(path);
  const auto found = [&](const checkpoint::DitHints& hints) {
    const nn::ModelConfig m = DitFile(path, Weights::kEma, hints).config().model;
    CHECK((m.patch_bottleneck == 5 && m.hidden_size == 32 && m.in_channels == 3));
    return std::array{m.patch_size, m.patch_overlap, m.input_height, m.input_width};
  };
  CHECK(found({.num_heads = 2, .patch_overlap = 2}) == std::array<int64_t, 4>{8, 2, 32, 32});
  CHECK(found({.num_heads = 2}) == std::array<int64_t, 4>{12, 0, 48, 48});
  CHECK(found({.num_heads = 2, .input_height = 48, .input_width = 48, .patch_overlap = 1}) ==
        std::array<int64_t, 4>{12, 0, 48, 48});
  const std::vector<std::string> known = {"model.num_heads=2", "model.patch_overlap=2"};
  const auto with = [&](const std::string& set) { return refusal(path, {known[0], known[1], set}); };
  CHECK_THAT(with("model.patch_bottleneck=4"), Contains("model.patch_bottleneck; got 5, expected 4"));
  CHECK(refusal(path, known) == "accepted");

  import_weights({.from = path, .out = out, .sets = {known[0], known[1], "model.in_channels=4", "data.kind=latents"}});
  const std::vector<float> patches = in(out, "x_embedder.proj1.weight"), last = in(out, "final_layer.linear.bias");
  const std::vector<float> old = to_vector(source->parameters().find("x_embedder.proj1.weight").value),
                           old_last = to_vector(source->parameters().find("final_layer.linear.bias").value);
  constexpr int64_t kKK = 12 * 12;
  REQUIRE(patches.size() == 5 * 4 * kKK);
  REQUIRE(last.size() == 8 * kKK);
  for (const int64_t k : {int64_t{0}, kKK - 1}) {
    double sum = 0, old_sum = 0, mean = 0;
    for (int64_t i = 0; i < 4; ++i) sum += patches[size_t((4 * 4 + i) * kKK + k)];
    for (int64_t i = 0; i < 3; ++i)
      old_sum += old[size_t((4 * 3 + i) * kKK + k)], mean += old_last[size_t(k * 6 + i)] / 3;
    CHECK(sum == Approx(old_sum).epsilon(1e-5).margin(1e-7));
    CHECK(last[size_t(k * 8)] == Approx(mean));
  }
  CHECK(in(out, "x_embedder.proj2.weight") == to_vector(source->parameters().find("x_embedder.proj2.weight").value));
  // A plain file is not taken for one with overlap.
  LooseWeights(*test::random_model(test::tiny_config())).save(path);
  CHECK_THAT(refusal(path, {"model.num_heads=2", "model.input_size=32", "model.patch_overlap=1"}),
             Contains("model.patch_overlap; got 0, expected 1"));
}

TEST_CASE("variance channels and rows of dropped labels come and go") {
  const TemporaryFolder folder;
  const auto source = test::random_model(test::tiny_config());
  LooseWeights(*source).save(folder / "w.safetensors");
  const std::vector<std::string> base = {"model.num_heads=2"};
  const auto plain = import_weights(
      {.from = folder / "w.safetensors",
       .out = folder / "plain",
       .sets = {"model.num_heads=2", "model.learn_sigma=false", "model.num_classes=8", "model.class_dropout=0"}});
  CHECK(has_line(plain.notes, "variance channels of the file are dropped"));
  const std::vector<float> bias = in(folder / "plain", "final_layer.linear.bias"),
                           old = to_vector(source->parameters().find("final_layer.linear.bias").value);
  REQUIRE(bias.size() * 2 == old.size());
  for (size_t i = 0; i < bias.size(); ++i) REQUIRE(bias[i] == old[i / 3 * 6 + i % 3]);
  const std::vector<float> labels = in(folder / "plain", "y_embedder.embedding_table.weight"),
                           all = to_vector(source->parameters().find("y_embedder.embedding_table.weight").value);
  CHECK(std::equal(labels.begin(), labels.end(), all.begin()));
  CHECK(labels.size() == 8 * 32);

  const auto back = import_weights({.from = folder / "plain",
                                    .out = folder / "back",
                                    .sets = {"model.learn_sigma=true", "model.class_dropout=0.1"}});
  CHECK(has_line(back.notes, "no variance channels in the file: they start at 0"));
  CHECK(has_line(back.notes, "no row of dropped labels in the file: a new one"));
  const std::vector<float> grown = in(folder / "back", "final_layer.linear.bias");
  for (size_t i = 0; i < grown.size(); ++i) REQUIRE(grown[i] == (i % 6 < 3 ? old[i] : 0.f));
}

TEST_CASE("ranges and scales of bands go with their names, and fit the channels of the model") {
  const TemporaryFolder folder;
  config::Config config;
  config.model = test::tiny_config();
  config.data.kind = dataset::find_kind("tiles"), config.data.number_type = images::PixelType::kU16;
  config.data.bands = {"B2", "B3", "B4"};
  config.data.scale_low = {1, 2, 3}, config.data.scale_high = {10, 20, 30};
  config.data.number_scale = {1e-4, 2e-4, 3e-4}, config.data.number_offset = {0, 0.1, 0.2};
  const auto saved = [&](const config::Config& c) {
    fs::remove(folder / "w");
    checkpoint::export_public(folder / "w", *test::random_model(c.model), c, DType::kF32);
    return folder / "w";
  };
  const std::string file = saved(config);
  const auto data_of = [&](const std::string& out, const std::vector<std::string>& sets) {
    return import_weights({.from = file, .out = folder / out, .sets = sets}).config.data;
  };
  const dataset::Config turned = data_of("turned", {"data.bands=[b04, B3, B2]"});
  CHECK((turned.scale_low == std::vector<double>{3, 2, 1} && turned.scale_high == std::vector<double>{30, 20, 10}));
  CHECK(turned.number_scale == std::vector<double>{3e-4, 2e-4, 1e-4});
  CHECK(turned.number_offset == std::vector<double>{0.2, 0.1, 0});
  const dataset::Config part = data_of("part", {"data.bands=[B4, B2]", "model.in_channels=2", "data.scale_low=[5, 6]"});
  CHECK((part.scale_low == std::vector<double>{5, 6} && part.scale_high == std::vector<double>{30, 10}));
  CHECK_THAT(refusal(file, {"data.bands=[B2, B3, B8]"}), Contains("got B8, expected one of B2, B3, B4"));
  CHECK_THAT(refusal(file, {"model.in_channels=4"}), Contains("model.in_channels 4, expected 3"));
  CHECK_THAT(refusal(file, {"data.scale_high=[10, 20]"}), Contains("3 and 2 numbers, expected 3, one per band"));
  const std::vector<std::string> given = {"model.condition_channels=1", "data.condition=[VV]"};
  CHECK_THAT(refusal(file, given), Contains("ranges of the bands that the model is given are not known"));
  CHECK_THAT(refusal(file, {given[0]}), Contains("model.condition_channels 1, expected 0"));
  const auto ranges = [&](const std::string& high) {
    return refusal(file, {given[0], given[1], "data.condition_low=[0]", "data.condition_high=" + high});
  };
  CHECK_THAT(ranges("[1, 2]"),
             Contains("data.condition_low and data.condition_high do not go with data.condition; got 1 and 2 numbers"));
  CHECK_THAT(ranges("[0]"), Contains("the range of band VV has no width"));
  CHECK(ranges("[1]") == "accepted");
  // What ditsample takes from a file that says other than its weights.
  config.data.bands = std::vector<std::string>(3004, "B");
  config.data.scale_low = std::vector<double>(3004, 0), config.data.scale_high = std::vector<double>(3004, 1);
  const config::Config wrong = checkpoint::find_weights(saved(config), Weights::kEma).config;
  CHECK_THROWS_WITH(config::check_bands(wrong), Contains("model.in_channels 3, expected 3004"));
}

TEST_CASE("another network is refused by the key that makes it so, or by its name") {
  const TemporaryFolder folder;
  const std::string path = folder / "w.safetensors";
  LooseWeights whole(*test::random_model(test::tiny_config()));
  whole.save(path);
  const auto with = [&](const std::string& set) { return refusal(path, {"model.num_heads=2", set}); };
  CHECK_THAT(with("model.patch_size=4"),
             Contains("model.patch_size; got 8, expected 4") && Contains("--set model.patch_size=8"));
  CHECK_THAT(with("model.hidden_size=64"), Contains("model.hidden_size; got 32, expected 64"));
  CHECK_THAT(with("model.depth=3"), Contains("model.depth; got 2"));
  CHECK_THAT(with("model.mlp_ratio=2"), Contains("model.mlp_ratio; got 4"));
  CHECK_THAT(with("model.qk_norm=rms"), Contains("model.qk_norm; got none, expected rms"));
  CHECK_THAT(refusal(path, {"model.name=DiT-S/8"}), Contains("model.hidden_size; got 32, expected 384"));

  const auto named = [&](const std::vector<std::string>& names) {
    LooseWeights other(path);
    other.tensors.clear();
    for (const std::string& name : names) other.tensors[name] = {{1}, {0}};
    other.save(path);
    return refusal(path);
  };
  CHECK_THAT(named({"joint_blocks.0.x_block.attn.qkv.weight", "x_embedder.proj.weight"}),
             Contains("not the weights of a DiT; this looks like an SD3 MMDiT"));
  CHECK_THAT(named({"cls_token", "patch_embed.proj.weight"}), Contains("looks like a Vision Transformer (ViT)"));
  CHECK_THAT(named({"time_embedding.linear_1.weight", "down_blocks.0.resnets.0.conv1.weight"}),
             Contains("looks like a UNet of diffusers"));
  CHECK_THAT(named({"Conv2d_1a_3x3.conv.weight", "Mixed_5b.branch1x1.conv.weight"}), Contains("Inception v3"));
  CHECK_THAT(named({"some.weight"}), Contains("not the weights of a DiT; got tensors such as some.weight"));
  CHECK_THAT(refusal(golden("vae_names/vae_names_new.safetensors")), Contains("looks like an autoencoder (VAE)"));
  whole.tensors["blocks.0.mlp.w12.weight"] = {{1}, {0}};
  whole.save(path);
  CHECK_THAT(refusal(path, {"model.num_heads=2"}),
             Contains("tensor blocks.0.mlp.w12.weight is not one of a DiT") && Contains("looks like a LightningDiT"));
}

TEST_CASE("damaged weights are refused, and leave nothing behind") {
  const TemporaryFolder folder;
  const std::string path = folder / "w.safetensors";
  const LooseWeights whole(*test::random_model(test::tiny_config()));
  const auto changed = [&](const std::function<void(LooseWeights&)>& change) {
    LooseWeights copy = whole;
    change(copy);
    copy.save(path, "module.");
    return refusal(path, {"model.num_heads=2"});
  };
  CHECK(changed([](LooseWeights&) {}) == "accepted");
  CHECK_THAT(changed([](LooseWeights& w) { w.tensors.erase("blocks.1.attn.proj.bias"); }),
             Contains("tensor module.blocks.1.attn.proj.bias is missing"));
  CHECK_THAT(changed([](LooseWeights& w) { w.tensors.erase("x_embedder.proj.weight"); }),
             Contains("tensor module.x_embedder.proj.weight is missing"));
  CHECK_THAT(changed([](LooseWeights& w) {
               w.tensors["blocks.2.extra"] = {{1}, {0}};
             }),
             Contains("tensor module.blocks.2.extra is not one of a DiT"));
  CHECK_THAT(changed([](LooseWeights& w) {
               w.tensors["blocks.0.attn.qkv.weight"] = {{32, 96}, std::vector<float>(3072)};
             }),
             Contains("shape of module.blocks.0.attn.qkv.weight; got [32, 96], expected [96, 32]"));
  CHECK_THAT(changed([](LooseWeights& w) {
               w.tensors["x_embedder.proj.weight"] = {{32, 192}, std::vector<float>(6144)};
             }),
             Contains("got [32, 192], expected 4 dimensions"));
  CHECK_THAT(changed([](LooseWeights& w) {
               w.tensors["x_embedder.proj.weight"] = {{0, 3, 8, 8}, {}};
             }),
             Contains("expected [width, channels, patch, patch]"));
  CHECK_THAT(changed([](LooseWeights& w) {
               w.tensors["final_layer.linear.weight"] = {{5, 32}, std::vector<float>(160)};
             }),
             Contains("rows of module.final_layer.linear.weight; got 5"));
  CHECK_THAT(changed([](LooseWeights& w) { w.tensors["blocks.0.mlp.fc2.bias"].values[3] = NAN; }),
             Contains("not finite at element 3"));

  whole.save(path);
  fs::resize_file(path, fs::file_size(path) - 100);
  CHECK_THAT(refusal(path), Contains(path));
  CHECK_THAT(refusal(golden("pt_files/hostile/truncated.pt")), Contains("not a whole zip archive"));
  CHECK_THAT(refusal(golden("pt_files/hostile/os_system.pt")), Contains("os.system"));
  CHECK_THAT(refusal(golden("pt_files/dtypes.pt")), Contains("not the weights of a DiT"));
  CHECK_THAT(refusal(folder / "absent"), Contains("does not exist"));
  fs::create_directory(folder / "empty");
  CHECK_THAT(refusal(folder / "empty"), Contains("no complete checkpoint"));
}

TEST_CASE("folders of diffusers that are no DiT, or contradict themselves, are refused") {
  const TemporaryFolder folder;
  const std::string weights = "/diffusion_pytorch_model.safetensors", model = folder / "transformer";
  fs::create_directory(model);
  fs::copy(golden("diffusers_dit") + weights, model + weights);
  const auto good = files::parse_json(get_file(golden("diffusers_dit/config.json")));
  const auto with = [&](const std::string& key, const nlohmann::json& value) {
    nlohmann::json config = good;
    config[key] = value;
    put_file(model + "/config.json", files::json_text(config));
    return refusal(folder.path());
  };
  CHECK(with("dropout", 0.0) == "accepted");
  CHECK_THAT(with("_class_name", "UNet2DConditionModel"), Contains("not a DiT; got UNet2DConditionModel"));
  CHECK_THAT(with("_class_name", "SD3Transformer2DModel"), Contains("not a DiT; got SD3Transformer2DModel"));
  CHECK_THAT(with("num_layers", 3), Contains("num_layers contradicts the weights; got 3, expected 2"));
  CHECK_THAT(with("num_attention_heads", 8), Contains("attention_head_dim contradicts the weights"));
  CHECK_THAT(with("num_attention_heads", -1), Contains("num_attention_heads; got -1"));
  CHECK_THAT(with("activation_fn", "gelu"), Contains("another network: activation_fn; got \"gelu\""));
  CHECK_THAT(with("sample_size", 1e9), Contains("sample_size"));
  CHECK(with("num_embeds_ada_norm", 10) == "accepted");

  LooseWeights torn(model + weights);
  torn.tensors["transformer_blocks.1.norm1.emb.timestep_embedder.linear_2.bias"].values[5] += 1;
  torn.save(model + weights);
  CHECK_THAT(refusal(model), Contains("transformer_blocks.1.norm1.emb.timestep_embedder.linear_2.bias differ"));
  fs::remove(model + weights);
  CHECK_THAT(refusal(model), Contains("no weights in this folder"));
  put_file(model + "/config.json", "{");
  CHECK_THAT(refusal(model), Contains("not JSON"));
  fs::remove_all(model);
  put_file(folder / "model_index.json", R"({"_class_name": "StableDiffusionPipeline"})");
  CHECK_THAT(refusal(folder.path()), Contains("no transformer") && Contains("StableDiffusionPipeline"));
}
