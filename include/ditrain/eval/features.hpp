// Features of image sets, which the metrics of evaluation compare.
//
//   pixels      the image itself, averaged down to at most 4,096 values. Needs no weights and takes any number of
//               channels; its distances show a trend during training and are not comparable with any published FID.
//   inception   the FID Inception network (nn/inception.hpp), with weights that the user supplies; 8-bit images of any
//               size, which threads of oneTBB read and resize while the network runs.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ditrain/base/words.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/eval/fid_preset.hpp"
#include "ditrain/eval/image_set.hpp"
#include "ditrain/nn/inception.hpp"

namespace ditrain::eval {

enum class FeatureKind { kInception, kPixels };
inline constexpr Word<FeatureKind> kFeatureKinds[] = {{"inception", FeatureKind::kInception},
                                                      {"pixels", FeatureKind::kPixels}};
constexpr std::span<const Word<FeatureKind>> words_of(FeatureKind) { return kFeatureKinds; }

struct FeatureSettings {
  FeatureKind kind = FeatureKind::kInception;
  std::string weights = {};  ///< file of the network's weights
  FidPreset preset = FidPreset::kPytorchFid;
  DType precision = DType::kF32;         ///< of the network: f32, or bf16, which is faster and less exact
  bool spatial = false, logits = false;  ///< inception: also compute spatial features (sFID), logits
  // Made by load_network():
  std::shared_ptr<nn::Inception> network = nullptr;
  std::string weights_sha256 = {};
};

/// Heights and widths of images, in pixels.
struct ImageSizes {
  int64_t least_height = 0, greatest_height = 0, least_width = 0, greatest_width = 0;
  bool operator==(const ImageSizes&) const = default;
  void add(int64_t height, int64_t width);
  bool are_square() const { return *this == ImageSizes{least_height, least_height, least_height, least_height}; }
  std::string describe() const;  ///< "256x256", or "348x464 to 464x464"
};

/// Features of a set, one row per image in the order of the set.
struct Features {
  int64_t n = 0, d = 0;
  std::vector<float> values = {};   ///< [n, d]
  std::vector<float> spatial = {};  ///< [n, ...], for sFID; empty: the kind has none
  std::vector<float> logits = {};   ///< [n, classes], for the Inception Score; empty: the kind has none
  std::string description = {};     ///< for the protocol line
  /// Relative error of a bf16 network: |features - f32 features| / |f32 features| over the first 8 images at most.
  std::optional<double> error_of_precision = {};
  ImageSizes sizes = {};  ///< inception, which resizes the images
};

/// Checks the settings before any image is read, and loads the network if the kind has one.
/// Errors:   InputError, where = "features" or the file of weights
void load_network(FeatureSettings& settings);

/// Loads the network from a safetensors or PyTorch file with the tensor names of pytorch-fid's port.
/// Errors:   InputError, where = path: weights that are missing, of other shapes or not finite; torchvision's
///           Inception, which is another network
nn::Inception load_inception(const std::string& path, DType type = DType::kF32);

/// Computes the features of all images. Collective: rank 0 returns them, the others return none.
/// Errors:   InputError: load_network(); images that cannot be read; for pixels, images of several sizes; for
///           inception, images that are neither grey nor RGB, with or without alpha, of eight bits
/// Threads:  ranks and the workers of `team` share the images; bit-identical for any number of them
Features features_of(parallel::Team& team, dist::Communicator& comm, ImageSet& set, const FeatureSettings& settings);
/// The same in one process.
Features features_of(parallel::Team& team, ImageSet& set, const FeatureSettings& settings);

inline constexpr int64_t kMaxPixelFeatures = 4096;
/// Bytes that the network takes: weights, and activations of a batch.
inline constexpr size_t kInceptionBytes = size_t{220} << 20;

/// Number of dimensions of the features of images of this shape.
int64_t dimensions_of(FeatureKind kind, const dataset::SampleShape& shape);

/// The side, in pixels, of the square blocks over which `pixels` averages an image: the smallest for which blocks x
/// channels is at most kMaxPixelFeatures.
/// Errors:   InputError if there are more channels than features
int64_t pixel_block(int64_t height, int64_t width, int64_t channels);

}  // namespace ditrain::eval
