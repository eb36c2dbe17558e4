// Settings of the section `data` of a config file. Fields that a kind does not use are ignored by it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ditrain::dataset {

struct Config {
  std::string kind = "shapes";        ///< one of kinds()
  std::string path;                   ///< folder (folder, latents) or one .safetensors file (latents)
  std::string on_bad_file = "error";  ///< error: stop at the first unreadable sample; skip: count it, take the next one
  bool random_flip = true;            ///< mirror half of the samples (folder; latents that hold flipped copies)
  double latent_scale = 1.0;          ///< latents are multiplied by it (1: the files already hold scaled latents)
  int64_t num_images = 50000;         ///< shapes: images an epoch
  int64_t loader_threads = 1;         ///< threads that read and decode, 1 to 1024
  int64_t queue_batches = 4;          ///< batches kept ready ahead of the step, 1 to 1024
};

/// The kinds of data sets, in the order of the documentation.
std::vector<std::string> kinds();

}  // namespace ditrain::dataset
