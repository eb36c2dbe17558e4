// Features of image sets: what the metrics of evaluation compare.
//
//   pixels      the image itself, averaged down to at most 4,096 values. Needs no weights and takes any number of
//               channels; its distances show a trend during training and are not comparable with any published FID.
//   inception   the FID Inception network (nn/inception.hpp) with weights of the user; images of eight bits, of any
//               size, read and resized by oneTBB's threads beside the network.
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
  std::string weights = {};  ///< of the network
  FidPreset preset = FidPreset::kPytorchFid;
  DType precision = DType::kF32;         ///< of the network: f32, or bf16, which is faster and a little off
  bool spatial = false, logits = false;  ///< wanted beside the features; of inception
  // Made by load_network():
  std::shared_ptr<nn::Inception> network = nullptr;
  std::string weights_sha256 = {};
};

/// Features of a set, one row per image in the order of the set.
struct Features {
  int64_t n = 0, d = 0;
  std::vector<float> values = {};   ///< [n, d]
  std::vector<float> spatial = {};  ///< [n, ...], for sFID; empty: the kind has none
  std::vector<float> logits = {};   ///< [n, classes], for the Inception Score; empty: the kind has none
  std::string description = {};     ///< for the protocol line
  /// The error of a network in bf16: |its features - those in f32| / |those in f32| over the first images, at most 8.
  std::optional<double> error_of_precision = {};
};

/// What the kind cannot do is refused before any image is read; reads the weights of the network.
/// Errors:   InputError, where = "features" or the file of weights
void load_network(FeatureSettings& settings);

/// The network from a safetensors file or a file of PyTorch with the port's names.
/// Errors:   InputError, where = path: weights that are missing, of other shapes or not finite; torchvision's network
nn::Inception load_inception(const std::string& path, DType type = DType::kF32);

/// Features of all images on rank 0, nothing on the others.
/// Errors:   InputError: load_network(); images that cannot be read; for pixels, images of several sizes; for
///           inception, images that are neither grey nor RGB, with or without alpha, of eight bits
/// Threads:  ranks and the workers of `team` share the images; bit-identical for any number of them
Features features_of(parallel::Team& team, dist::Communicator& comm, ImageSet& set, const FeatureSettings& settings);
/// The same of one process.
Features features_of(parallel::Team& team, ImageSet& set, const FeatureSettings& settings);

inline constexpr int64_t kMaxPixelFeatures = 4096;
/// What the network takes: weights, and activations of a batch.
inline constexpr size_t kInceptionBytes = size_t{220} << 20;

/// Dimensions of the features of images of that shape.
int64_t dimensions_of(FeatureKind kind, const dataset::SampleShape& shape);

/// The side of the blocks that an image is averaged by: the smallest with at most kMaxPixelFeatures blocks and
/// channels.
/// Errors:   InputError if there are more channels than features
int64_t pixel_block(int64_t height, int64_t width, int64_t channels);

}  // namespace ditrain::eval
