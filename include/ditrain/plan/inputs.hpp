// What a run is made of: data and model.
#pragma once
#include <memory>
#include <string>

#include "ditrain/config/config.hpp"
#include "ditrain/dataset/dataset.hpp"
#include "ditrain/eval/latent_codec.hpp"

namespace ditrain::plan {

/// A sample as the model takes it.
dataset::SampleShape model_shape(const nn::DitConfig& model);

/// The training data; with data.vae the pictures of which it makes latents. Errors: as dataset::open_dataset and
/// eval::LatentCodecPlan
std::unique_ptr<dataset::Dataset> open_data(const config::Config& config);

/// Refuses an autoencoder for samples whose latents have another scale than those that the model learned, where the
/// config tells it (data.latent_scale, data.vae). Errors: InputError
void expect_learned_scale(const eval::LatentCodecPlan& decoder, const config::Config& config);

/// One line: sizes, parameters, work of an image.
std::string describe_model(const config::Config& config);

}  // namespace ditrain::plan
