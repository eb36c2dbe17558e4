// Where weights come from: checkpoints, exports, and the config that belongs to them.
#include <filesystem>

#include "ditrain/base/error.hpp"
#include "ditrain/checkpoint/checkpoint.hpp"
#include "ditrain/checkpoint/export.hpp"
#include "ditrain/io/safetensors.hpp"
#include "export_names.hpp"

namespace ditrain::checkpoint {
namespace {

namespace fs = std::filesystem;

WeightsSource from_state(const std::string& folder, const std::string& file) {
  const CheckpointState state = read_checkpoint_state(folder);
  return {file, config::parse_config(state.config_yaml, folder + "/state.json"), state.step};
}

WeightsSource from_file(const std::string& path) {
  const auto metadata = io::SafetensorsFile(path).metadata();
  if (const auto config = metadata.find(kConfigMetadata); config != metadata.end())
    return {path, config::parse_config(config->second, path), -1};
  const fs::path parent = fs::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (fs::is_regular_file(folder + "/state.json")) return from_state(folder, path);
  if (fs::is_regular_file(folder + "/config.yaml")) return {path, config::load_config(folder + "/config.yaml"), -1};
  throw InputError({.where = "checkpoint",
                    .what = "no config says what model " + path + " holds",
                    .expected = "a file written by ditexport, or state.json or config.yaml beside it"});
}

}  // namespace

WeightsSource find_weights(const std::string& path, Weights weights) {
  if (!fs::exists(path))
    throw InputError({.where = "checkpoint", .what = path + " does not exist", .expected = "a folder or a file"});
  if (fs::is_regular_file(path)) return from_file(path);
  const std::string folder = find_checkpoint(path);
  return from_state(folder, folder + "/" + std::string(word_of(weights)) + ".safetensors");
}

std::unique_ptr<nn::Dit> load_model(const WeightsSource& source) {
  auto model = std::make_unique<nn::Dit>(source.config.model);
  autograd::ParameterStore& parameters = model->parameters();
  parameters.allocate(autograd::ParameterStore::For::kInference);
  load_weights(source.file, parameters, parameters.values);
  return model;
}

}  // namespace ditrain::checkpoint
