// The kinds of data sets (data.kind), one row each. To add one: its file in src/dataset, with a function that opens it,
// and its declaration and row in kinds.cpp.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "ditrain/dataset/dataset.hpp"

namespace ditrain::weights {
class SafetensorsFile;
}
namespace ditrain::dataset {

struct OpenRequest {
  const Config& config;
  const SampleShape& shape;
  int64_t num_classes;  // the model's; 0: it takes no labels
  uint64_t seed;
};

struct DataKind {
  std::string_view name;
  std::string_view help;  ///< a few words
  std::unique_ptr<Dataset> (*open)(const OpenRequest& request);
  std::string_view path;         ///< what data.path has to be; "": it is not needed
  bool pixels = true;            ///< samples are pixels in [-1, 1], not latents
  bool of_bands = false;         ///< samples are digital numbers of named bands, each with a range (band_scaling.hpp)
  bool of_colours = false;       ///< three channels are red, green and blue
  int64_t num_classes = 0;       ///< classes of every such set; 0: it depends on the data
  std::string_view advice = {};  ///< for the run summary: what else shortens the wait for data
};

/// Errors:   LogicFault for a name that no kind has
const DataKind* find_kind(std::string_view name);
/// Whether values to train on are so wide or narrow that latents were probably not scaled: about 1 is learnt well.
bool is_odd_deviation(double deviation);
/// The factor of latents that the metadata of a shard state; 0: nothing that is a factor.
double stated_latent_scale(const weights::SafetensorsFile& shard);
std::string help_of_kinds();  ///< "shapes: drawn, needs no files; folder: ..."

}  // namespace ditrain::dataset
