// One function a kind; dataset.cpp holds the registry that names them.
#pragma once
#include <memory>

#include "ditrain/dataset/dataset.hpp"

namespace ditrain::dataset {

struct OpenRequest {
  const Config& config;
  const SampleShape& shape;
  int64_t num_classes;  // the model's; 0: takes no labels
  uint64_t seed;
};

std::unique_ptr<Dataset> open_shapes(const OpenRequest& request);
std::unique_ptr<Dataset> open_image_folder(const OpenRequest& request);
std::unique_ptr<Dataset> open_latents(const OpenRequest& request);

}  // namespace ditrain::dataset
