#include "ditrain/plan/inputs.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "ditrain/dataset/kinds.hpp"
#include "ditrain/nn/dit.hpp"

namespace ditrain::plan {

dataset::SampleShape model_shape(const nn::DitConfig& m) { return {m.in_channels, m.input_height, m.input_width}; }

std::unique_ptr<dataset::Dataset> open_data(const config::Config& config) {
  const nn::DitConfig& m = config.model;
  dataset::SampleShape shape = model_shape(m);
  if (!config.data.vae.empty()) shape = eval::LatentCodecPlan(config.data.vae, shape).images();
  return dataset::open_dataset(config.data, shape, m.num_classes, uint64_t(config.train.seed));
}

std::unique_ptr<dataset::Dataset> settle(config::Config& config) {
  int64_t& classes = config.model.num_classes;
  const bool automatic = classes == nn::kClassesOfData;
  if (!config.data.kind->path.empty() && config.data.path.empty()) {
    if (automatic) classes = kAssumedClasses;
    return nullptr;
  }
  dataset::settle(config.data);
  if (automatic) classes = 0;  // for opening: labels are not held against a number
  auto data = open_data(config);
  if (automatic) classes = data->num_classes();
  return data;
}

void expect_learned_scale(const eval::LatentCodecPlan& decoder, const config::Config& config) {
  std::error_code unreadable;
  if (!config.data.vae.empty()) {  // a file that other machines need not have
    if (std::filesystem::exists(config.data.vae, unreadable))
      decoder.expect_scale(eval::LatentCodecPlan(config.data.vae, model_shape(config.model)).scale_factor(),
                           "data.vae: " + config.data.vae);
  } else if (const double scale = config.data.latent_scale.value_or(1); scale != 1) {  // 1: scaled beforehand
    decoder.expect_scale(scale, "data.latent_scale");
  }
}

std::string describe_model(const config::Config& config) {
  const nn::DitConfig& m = config.model;
  nn::Dit model(m);
  return fmt::format(
      "model: {} ({} blocks, width {}, {} heads, patch {}), input {} x {} x {}, {} classes, {} parameters, "
      "{:.2f} GFLOP per image and training step\n",
      m.name, m.depth, m.hidden_size, m.num_heads, m.patch_size, m.in_channels, m.input_height, m.input_width,
      m.num_classes, model.parameters().num_parameters(), 6e-9 * nn::forward_macs(m));
}

}  // namespace ditrain::plan
