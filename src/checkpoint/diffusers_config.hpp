// The JSON files of a folder of diffusers: where its model lies, what they say about it, and the noise it was trained
// with.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ditrain/checkpoint/dit_file.hpp"

namespace ditrain::checkpoint {

/// A folder of diffusers that holds a DiT: of the model, or of a pipeline.
struct DiffusersFolder {
  std::string weights;    ///< the file, or the index of its shards
  std::string config;     ///< config.json
  std::string scheduler;  ///< scheduler_config.json, "" if it does not exist
};

/// None: not a folder of diffusers. Errors: InputError if it holds another model than a DiT, which is named; no weights
std::optional<DiffusersFolder> find_diffusers(const std::string& folder);

/// What config.json knows. Errors: InputError for settings that make another network
DitHints hints_of(const DiffusersFolder& folder);
/// Errors: InputError if config.json contradicts the weights
void check_config(const DiffusersFolder& folder, const nn::ModelConfig& model);
/// What differs in diffusers' own network, and what of its noise ditrain does not have.
diffusion::Config noise_of(const DiffusersFolder& folder, std::vector<std::string>& notes);

}  // namespace ditrain::checkpoint
