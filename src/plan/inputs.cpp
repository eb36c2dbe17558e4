#include "ditrain/plan/inputs.hpp"

#include <fmt/format.h>

#include "ditrain/eval/latent_codec.hpp"
#include "ditrain/nn/dit.hpp"

namespace ditrain::plan {

dataset::SampleShape model_shape(const nn::DitConfig& m) { return {m.in_channels, m.input_height, m.input_width}; }

std::unique_ptr<dataset::Dataset> open_data(const config::Config& config) {
  const nn::DitConfig& m = config.model;
  dataset::SampleShape shape = model_shape(m);
  if (!config.data.vae.empty()) shape = eval::LatentCodecPlan(config.data.vae, shape).images();
  return dataset::open_dataset(config.data, shape, m.num_classes, uint64_t(config.train.seed));
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
