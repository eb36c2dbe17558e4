// Reads the weights of a DiT, whatever program wrote them, under the names of the public state dict.
//
// Problem:      the same network is published as a state dict, as a PyTorch checkpoint {model, ema, opt, args}, as a
//               diffusers folder with other names, and in our own checkpoints. Few of these files state the sizes of
//               the model, and none the number of heads.
// Abstraction:  DitFile. Sizes follow from shapes; heads from the width, a config beside the weights, or hints.
// Not here:     making the weights fit another model (adapt.hpp).
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/checkpoint/export.hpp"

namespace ditrain::checkpoint {

/// Values for what a file may not state. A hint that contradicts the file is ignored.
struct DitHints {
  std::optional<int64_t> num_heads = {};
  std::optional<int64_t> input_height = {}, input_width = {};
  std::optional<int64_t> condition_channels = {};
  std::optional<int64_t> num_classes = {};
  std::optional<double> class_dropout = {};
  std::optional<nn::Position> position = {};
  std::optional<int64_t> patch_overlap = {};
};
/// All hints, from the config of a model.
DitHints hints_of(const nn::ModelConfig& model);

/// How diffusers' network differs from ours, in words, for import and export.
inline constexpr const char* kDiffusersDiffers =
    "diffusers' own network gives other outputs for the same weights: it divides the exponents of its timestep "
    "frequencies by 127, where the reference and ditrain divide by 128";

/// The weights of a DiT in a file or folder.
/// Errors:   InputError, where = the file: not there; weights of another network, which is named; sizes that cannot be
///           found out, with the key to set; a tensor that is missing, no part of a DiT, of another shape or type;
///           copies in blocks that differ; a config.json that contradicts the weights or asks for another network
/// Threads:  one at a time
class DitFile {
 public:
  /// `path`: a run folder, a folder of checkpoints or a checkpoint (`weights` picks the file); a file of weights (if it
  /// has several models, `weights` picks one); a diffusers folder, of the model or of the whole pipeline.
  DitFile(const std::string& path, Weights weights, const DitHints& hints = {});
  ~DitFile();
  DitFile(DitFile&&) noexcept;

  const std::string& path() const;  ///< path of the weights, or of the index of their shards
  /// The config of the model in the file. Our own checkpoints give all keys, a diffusers pipeline also its noise
  /// schedule; all other keys have defaults.
  const config::Config& config() const;
  bool has_config() const;                              ///< whether a ditrain config is in the file or beside it
  const std::vector<std::string>& class_names() const;  ///< by label; empty: the file does not say
  /// What was derived or assumed, one line each.
  const std::vector<std::string>& notes() const;
  /// Whether load_weights can read the file as it is.
  bool is_plain() const;

  /// A tensor of the public state dict, in full. The position table is computed where the file has none.
  /// Errors: InputError for copies that differ, and for a number that is not finite
  std::vector<float> read(const std::string& name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ditrain::checkpoint
