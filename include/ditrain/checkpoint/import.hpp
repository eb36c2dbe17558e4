// Converts published weights to a checkpoint, to sample from or to fine-tune.
#pragma once
#include <string>
#include <vector>

#include "ditrain/checkpoint/adapt.hpp"

namespace ditrain::checkpoint {

struct ImportRequest {
  std::string from;  ///< as DitFile takes it
  std::string out;   ///< a folder that does not exist yet: it becomes a checkpoint
  Weights weights = Weights::kEma;
  std::vector<std::string> sets = {};  ///< config keys, "model.num_heads=6"
};

struct Imported {
  config::Config config;
  std::string file;  ///< the file that the weights were read from
  int64_t num_parameters = 0;
  std::vector<std::string> notes;  ///< what was derived, assumed and adapted, one line each
};

/// Writes a checkpoint of step 0. Weights and EMA are those of the file, the optimiser state is 0. Where the keys put
/// bands of the file into another order, or leave some out, their ranges and scales go along.
/// Memory:   4 bytes per parameter, and the largest tensor twice
/// Errors:   InputError as DitFile, load_adapted and config::check_bands, for bad keys, for bands whose ranges neither
///           the file nor the keys have, and if `out` exists; RunError (disk full, ...), then nothing is left behind
Imported import_weights(const ImportRequest& request);

}  // namespace ditrain::checkpoint
