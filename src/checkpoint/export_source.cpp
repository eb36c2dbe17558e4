// Where weights come from: checkpoints, exports, and the config that belongs to them.
#include <filesystem>
#include <map>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/base/log.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/checkpoint/checkpoint.hpp"
#include "ditrain/checkpoint/export.hpp"
#include "ditrain/config/differences.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "ditrain/weights/weight_file.hpp"
#include "export_names.hpp"

namespace ditrain::checkpoint {
namespace {

namespace fs = std::filesystem;

// The name of a file of a checkpoint says which weights it holds.
WeightsSource from_state(const std::string& folder, const std::string& file) {
  const CheckpointState state = read_checkpoint_state(folder);
  const std::string name = fs::path(file).stem().string();
  Weights known{};
  return {file, config::parse_config(state.config_yaml, folder + "/state.json"), state.step,
          find_word(name, known) ? name : "", state.class_names};
}

// What an export of this version says about its weights.
WeightsSource from_export(const std::string& path, const std::map<std::string, std::string>& metadata) {
  WeightsSource source{path, config::parse_config(metadata.at(kConfigMetadata), path)};
  if (const auto weights = metadata.find(kWeightsMetadata); weights != metadata.end()) source.weights = weights->second;
  if (const auto step = metadata.find(kStepMetadata); step != metadata.end()) {
    if (int64_t number = -1; parse_whole(step->second, number) && number >= 0) source.step = number;
  }
  return source;
}

// A config.yaml as it was wanted: the run has settled it.
bool leaves_open(const config::Config& c) {
  const bool bands = c.data.kind->of_bands && (c.data.bands.empty() || c.data.scale_low.empty());
  const bool scale = !c.data.kind->pixels && !c.data.latent_scale;
  return c.model.num_classes == nn::kClassesOfData || bands || scale;
}

WeightsSource from_file(const std::string& path) {
  const std::string import = "ditimport --from " + quoted_word(path) + " --out DIR, and that folder";
  if (weights::weight_format(path) == weights::WeightFormat::kPytorch)
    throw InputError({.where = "checkpoint",
                      .what = path + " is a file of PyTorch",
                      .expected = "a checkpoint, or a file written by ditexport",
                      .hint = import});
  const auto metadata = weights::SafetensorsFile(path).metadata();
  if (metadata.contains(kConfigMetadata)) return from_export(path, metadata);
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (fs::is_regular_file(folder + "/state.json")) return from_state(folder, path);
  if (fs::is_regular_file(folder + "/config.yaml")) {
    const config::Config config = config::load_config(folder + "/config.yaml");
    if (leaves_open(config))
      throw InputError({.where = folder + "/config.yaml",
                        .what = "it leaves to the data what the weights in " + path + " need: classes, bands or scale",
                        .got = "auto",
                        .expected = "a checkpoint folder, whose state.json has what was settled",
                        .hint = "the folder OUT/checkpoints/step_N of the run, or a file of ditexport"});
    return {path, config};
  }
  throw InputError({.where = "checkpoint",
                    .what = "no config says what model " + path + " holds",
                    .expected = "a file written by ditexport, or state.json or config.yaml beside it",
                    .hint = import});
}

}  // namespace

WeightsSource find_weights(const std::string& path, Weights weights) {
  if (!fs::exists(path))
    throw InputError({.where = "checkpoint", .what = path + " does not exist", .expected = "a folder or a file"});
  if (fs::is_regular_file(path)) return from_file(path);
  const std::string folder = find_checkpoint(path);
  return from_state(folder, folder + "/" + std::string(word_of(weights)) + ".safetensors");
}

std::unique_ptr<nn::Model> load_model(const WeightsSource& source, DType products) {
  auto model = std::make_unique<nn::Model>(source.config.model);
  autograd::ParameterStore& parameters = model->parameters();
  parameters.allocate(autograd::ParameterStore::For::kInference, products);
  load_weights(source.file, parameters, parameters.values);
  if (products == DType::kBF16)
    kernels::convert(Pin<float>(parameters.values).get(), Pin<BFloat16>(parameters.values_bf16).get(),
                     parameters.arena_size());
  return model;
}

std::vector<config::Difference> differences_of_meaning(config::Config a, config::Config b) {
  static const std::set<std::string> kKeys = {
      "model.input_size",    "model.condition_channels", "model.in_channels",    "model.num_classes",
      "model.learn_sigma",   "diffusion.process",        "diffusion.prediction", "diffusion.noise_scale",
      "diffusion.num_steps", "diffusion.schedule",       "data.bands",           "data.scale_low",
      "data.scale_high",     "data.latent_scale",        "data.condition",       "data.condition_low",
      "data.condition_high"};
  for (config::Config* c : {&a, &b})
    c->data.condition = dataset::condition_names(c->data), c->diffusion.prediction = &prediction_of(c->diffusion);
  // A run that encodes takes the scale from its VAE, of which an export tells the number.
  const auto leaves_scale = [](const config::Config& c) { return !config::learns_pixels(c) && !c.data.latent_scale; };
  if (leaves_scale(a) || leaves_scale(b)) a.data.latent_scale.reset(), b.data.latent_scale.reset();
  std::vector<config::Difference> all = config::differences(a, b);
  std::erase_if(all, [](const config::Difference& d) { return !kKeys.contains(d.key); });
  return all;
}

WeightsSource find_guide(const std::string& path, const config::Config& config,
                         const std::vector<std::string>& class_names) {
  WeightsSource source = find_weights(path, Weights::kEma);
  for (const config::Difference& d : differences_of_meaning(source.config, config))
    throw InputError({.where = "guide",
                      .what = "the outputs of the guide and of the model mean different things: " + path,
                      .got = d.key + ": " + d.old_value,
                      .expected = d.new_value,
                      .hint = "an earlier checkpoint of the same run, or a smaller model trained on the same data"});
  if (const std::string other = other_class(source.class_names, class_names); !other.empty())
    throw InputError({.where = "guide",
                      .what = "the labels of the guide mean other classes than those of the model: " + other,
                      .hint = "a guide that was trained on the same classes"});
  const std::string &data = source.config.data.path, &own = config.data.path;  // empty in exports
  const bool other_path = !data.empty() && !own.empty() && data != own;
  std::error_code error;
  if (other_path && fs::exists(data, error) && fs::exists(own, error) && !fs::equivalent(data, own, error))
    throw InputError({.where = "guide",
                      .what = "the guide was trained on other data than the model: " + path,
                      .got = "data.path: " + data,
                      .expected = own,
                      .hint = "an earlier checkpoint of the same run; if both hold the same images, an export of the "
                              "guide (ditexport), which names no folder"});
  if (other_path)
    log::warn("the guide was trained on {}, the model on {}: if these are different images, guidance leads astray",
              data, own);
  else if (!data.empty() && source.config.data.hold_out < config.data.hold_out)
    log::warn("the guide was trained with data.hold_out: {}, the model with {}: it has seen images that were held out",
              source.config.data.hold_out, config.data.hold_out);
  return source;
}

std::unique_ptr<nn::Model> load_guide(const std::string& path, const config::Config& config,
                                      const std::vector<std::string>& class_names, DType products) {
  if (path == config::kRoutedGuide) return nullptr;
  return load_model(find_guide(path, config, class_names), products);
}

}  // namespace ditrain::checkpoint
