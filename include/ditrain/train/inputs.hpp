// What a run is made of: data and model.
#pragma once
#include <memory>
#include <string>

#include "ditrain/dataset/dataset.hpp"
#include "ditrain/train/config.hpp"

namespace ditrain::train {

/// The training data. Errors: as dataset::open_dataset
std::unique_ptr<dataset::Dataset> open_data(const Config& config);

/// One line: sizes, parameters, work of an image.
std::string describe_model(const Config& config);

}  // namespace ditrain::train
