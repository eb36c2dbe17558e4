// Settings of the section `data` of a config file. Fields that a kind does not use are ignored by it.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ditrain/base/words.hpp"
#include "ditrain/images/pixel_type.hpp"

namespace ditrain::dataset {

struct DataKind;  // kinds.hpp
/// All kinds, in the order of the documentation.
std::span<const DataKind> rows_of(const DataKind*);
const DataKind* default_kind();

/// Stop at the first unreadable sample, or count it and take the next one.
enum class OnBadFile { kError, kSkip };
inline constexpr Word<OnBadFile> kOnBadFile[] = {{"error", OnBadFile::kError}, {"skip", OnBadFile::kSkip}};
constexpr std::span<const Word<OnBadFile>> words_of(OnBadFile) { return kOnBadFile; }

/// Where the ranges of the bands of tiles come from (band_scaling.hpp).
enum class ScalingFrom { kAuto, kPercentiles, kDeviation, kType, kRange };
inline constexpr Word<ScalingFrom> kScalings[] = {{"auto", ScalingFrom::kAuto},
                                                  {"percentiles", ScalingFrom::kPercentiles},
                                                  {"deviation", ScalingFrom::kDeviation},
                                                  {"type", ScalingFrom::kType}};
constexpr std::span<const Word<ScalingFrom>> words_of(ScalingFrom) { return kScalings; }

struct Scaling {
  ScalingFrom from = ScalingFrom::kAuto;
  double low = 0, high = 0;  ///< the range, for kRange only
  std::string text() const;  ///< as a config writes it
};

/// The pixel types that tiles may have.
inline constexpr images::PixelType kTileTypes[] = {images::PixelType::kU8, images::PixelType::kU16,
                                                   images::PixelType::kI16, images::PixelType::kF32};

/// Random changes of each sample besides random_flip: kFlips mirrors top to bottom, kTurns turns by quarters
/// (Loader::next).
enum class Augment { kNone, kFlips, kTurns };
inline constexpr Word<Augment> kAugments[] = {
    {"none", Augment::kNone}, {"flips", Augment::kFlips}, {"turns", Augment::kTurns}};
constexpr std::span<const Word<Augment>> words_of(Augment) { return kAugments; }

struct Config {
  const DataKind* kind = default_kind();
  std::string path;  ///< folder (folder, latents, tiles) or one .safetensors file (latents, tiles)
  std::string vae;   ///< autoencoder that encodes the images into the latents to learn; empty: none
  OnBadFile on_bad_file = OnBadFile::kError;
  double hold_out = 0;      ///< share of the samples that training never sees, in [0, 1); always the same samples
  bool random_flip = true;  ///< mirror half of the samples (folder, tiles; latents that hold flipped copies)
  Augment augment = Augment::kNone;
  bool exif_orientation = false;        ///< folder: turn photographs as their EXIF tag says; DiT's own code does not
  std::vector<std::string> bands = {};  ///< tiles: names, in the order of the channels; empty: all
  Scaling scaling = {};                 ///< tiles
  std::vector<double> scale_low = {}, scale_high = {};  ///< tiles: per band; empty: by `scaling` (settle_tiles)
  std::optional<images::PixelType> number_type = {};    ///< tiles: one of kTileTypes; none: the type of the tiles
  /// tiles: quantity = number * scale + offset, per band; empty: as the tiles say (settle_tiles). Written with samples;
  /// training does not use them.
  std::vector<double> number_scale = {}, number_offset = {};
  /// tiles: bands that the model receives as input and does not predict, in the syntax of ConditionBands
  std::vector<std::string> condition = {};
  std::vector<double> condition_low = {}, condition_high = {};  ///< per band of the condition; empty: by `scaling`
  std::optional<double> latent_scale = {};  ///< factor on stored latents; none: the factor in the shards, or 1
  int64_t num_images = 50000;               ///< shapes: images per epoch
  int64_t loader_threads = 1;               ///< threads that read and decode, 1 to 1024
  int64_t queue_batches = 4;                ///< batches read ahead of the step, 1 to 1024
};

}  // namespace ditrain::dataset
