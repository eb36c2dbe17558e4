#include "ditrain/plan/inputs.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "ditrain/nn/dit.hpp"

namespace ditrain::plan {

dataset::SampleShape model_shape(const nn::DitConfig& m) { return {m.in_channels, m.input_height, m.input_width}; }

std::unique_ptr<dataset::Dataset> open_data(const config::Config& config) {
  const nn::DitConfig& m = config.model;
  dataset::SampleShape shape = model_shape(m);
  if (!config.data.vae.empty()) shape = eval::LatentCodecPlan(config.data.vae, shape).images();
  return dataset::open_dataset(config.data, shape, m.num_classes, uint64_t(config.train.seed));
}

void expect_learned_scale(const eval::LatentCodecPlan& decoder, const config::Config& config) {
  std::error_code unreadable;
  if (!config.data.vae.empty()) {  // a file that other machines need not have
    if (std::filesystem::exists(config.data.vae, unreadable))
      decoder.expect_scale(eval::LatentCodecPlan(config.data.vae, model_shape(config.model)).scale_factor(),
                           "data.vae: " + config.data.vae);
  } else if (config.data.latent_scale != dataset::Config().latent_scale) {  // else the latents were scaled beforehand
    decoder.expect_scale(config.data.latent_scale, "data.latent_scale");
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
