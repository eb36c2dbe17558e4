// Adapts the weights of one DiT to another, for fine-tuning on other classes, bands or sizes.
//
// Equal parts are copied. These may differ and are adapted:
//   classes             a newly initialised label table; the row of dropped labels is kept
//   channels (bands)    a band whose name both models know gets the weights of that band, any other the mean over the
//                       bands of the file: in the patch embedding, which is then multiplied by (bands of the file) /
//                       (bands here) so that its outputs keep their size, and in the final layer, predictions and
//                       variances each for themselves
//   size of the input   a new position table
//   variance channels   dropped; or they start at 0, as in a new model
// Every other key of section model (width, depth, heads, ...) makes another network, and is refused by its name.
#pragma once
#include <string>
#include <vector>

#include "ditrain/checkpoint/channel_map.hpp"
#include "ditrain/checkpoint/dit_file.hpp"

namespace ditrain::checkpoint {

/// Names of the channels of a config's data; empty: not known.
std::vector<std::string> band_names(const config::Config& config);

/// Loads the weights of `file` into the values of an initialised model (or this rank's part, if ranks share it) with
/// config `target`. Returns what was adapted, one line each; empty: all weights are those of the file. `pus`: cores
/// that read, if the file is in our own format.
/// Errors:   InputError, where = the file: a model that cannot be adapted, with the key; as DitFile::read
std::vector<std::string> load_adapted(const DitFile& file, const config::Config& target, nn::Model& model,
                                      const std::vector<int>& pus = {});

}  // namespace ditrain::checkpoint
