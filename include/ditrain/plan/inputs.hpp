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

/// Stands for model.num_classes: auto in the plan of a run whose data is not known: ImageNet's.
inline constexpr int64_t kAssumedClasses = 1000;

/// Puts what follows from the data into the config (dataset::settle, model.num_classes) and returns the data, opened.
/// Where data.path is needed and not set: null, and kAssumedClasses. Errors: as open_data and dataset::settle
std::unique_ptr<dataset::Dataset> settle(config::Config& config);

/// Refuses an autoencoder for samples whose latents have another scale than those that the model learned, where the
/// config tells it (data.latent_scale, data.vae). Errors: InputError
void expect_learned_scale(const eval::LatentCodecPlan& decoder, const config::Config& config);

/// One line: sizes, parameters, work of an image.
std::string describe_model(const config::Config& config);

}  // namespace ditrain::plan
