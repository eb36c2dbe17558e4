// Converts digital numbers to the values that a model sees, and back. Every band has a range [low, high] that becomes
// [-1, 1]; numbers beyond it are clamped. Ranges come from the config or from stats.json. They are settled before a run
// starts and stored in its config, so that samples can be turned back into digital numbers years later.
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "ditrain/dataset/config.hpp"
#include "ditrain/dataset/tile_shards.hpp"

namespace ditrain::dataset {

/// Maps the digital numbers of one band to [-1, 1].
/// Math:     x = 2 (number - low) / (high - low) - 1, clamped to [-1, 1]; in f32
class RangeScale {
 public:
  RangeScale(double low, double high) : factor_(float(2 / (high - low))), offset_(float(-1 - low * 2 / (high - low))) {}
  template <class T>
  float operator()(T number) const {
    return std::clamp(float(number) * factor_ + offset_, -1.0f, 1.0f);
  }

 private:
  float factor_, offset_;
};

/// The bands of a model and their ranges, as RangeScale takes them.
struct BandScaling {
  std::vector<std::string> names;
  std::vector<double> low, high;
  images::PixelType type = images::PixelType::kF32;  ///< of the digital numbers
  std::vector<double> scale = {}, offset = {};       ///< quantity = number * scale + offset; empty: unknown

  int64_t channels() const { return int64_t(names.size()); }
  /// The digital number of model value `x`, which must not be NaN. An integer `type` rounds to nearest and clamps to
  /// the range of the type.
  double number(int64_t channel, double x) const;
  /// Converts model values [channels, pixels] to digital numbers of `type`. Returns their bytes, row-major.
  std::vector<std::byte> numbers(const float* values, int64_t pixels) const;
  std::string describe() const;  ///< "B4 134..2877, B3 ..."
};

/// Whether the config reads tiles, or latents made of tiles, and its scaling is settled.
bool has_scaling(const Config& config);
/// The scaling of a settled config.
/// Errors:   InputError if its lists (bands, ranges, scales) have different lengths
BandScaling scaling_of(const Config& config);

/// The colours among data.bands of a settled config. All bands of the tiles tell which sensor it is, while they are
/// there.
ColourBands colours_of(const Config& settled);

/// Fills the keys about bands that a config leaves empty: data.bands (all but the bands of the condition),
/// data.scale_low, data.scale_high, data.number_*, and for a condition data.condition (names as the tiles spell them),
/// data.condition_low and data.condition_high. For tiles the values come from the shards and, where data.scaling wants
/// it, from stats.json beside them; for latents, from the tile_facts of their first shard, if it has any. Keys that are
/// set stay. Other kinds of data are left alone.
/// Errors:   InputError: no shards of tiles, unknown bands, no stats.json or one of other bands, a range of no width
///           (scaling would divide by zero), shards of several scales whose data.number_* are not given; latents of
///           tiles with other values than those that are given
void settle_tiles(Config& config);

/// Checks settled keys about bands against each other and against the channels that a model predicts and is given.
/// Keys that are empty, and kinds of data without bands, have none to check; a condition has to have its ranges.
/// Errors:   InputError: other numbers of channels, bands or entries of lists, ranges as settle_tiles refuses them
void check_channels(const Config& config, int64_t channels, int64_t condition_channels);

/// The list data.condition, parsed: [FOLDER of tiles, BAND, ..., kValidChannel]. Without a folder the bands are those
/// of data.path; without bands the condition is all bands of the folder. The first word is a folder if it has a '/' or
/// ends in .safetensors.
struct ConditionBands {
  std::string path;  ///< "": data.path
  std::vector<std::string> bands;
  bool valid = false;  ///< one more channel, behind the bands: 1 where all of them have data, else -1
  int64_t channels() const { return int64_t(bands.size()) + (valid ? 1 : 0); }
};
inline constexpr const char* kValidChannel = "valid";
ConditionBands condition_of(const Config& config);
/// The channels of the condition by name, kValidChannel included: what the model is given, wherever its tiles lie.
std::vector<std::string> condition_names(const Config& config);

/// Replaces NaN, which marks missing pixels in a band of a condition, by the mean of the other pixels, or by 0 if all
/// are missing.
void fill_condition(float* plane, int64_t pixels);

/// Metadata that shards of latents copy from the tiles they encode: metadata_of() the bands, and number_type, scale_low
/// and scale_high (JSON lists) of the settled config.
std::map<std::string, std::string> tile_facts(const Config& settled);
/// The keys of tile_facts by which decoded latents become digital numbers and quantities again.
inline constexpr const char* kScalingFacts[] = {"bands", "number_type", "scale_low", "scale_high", "scale", "offset"};

/// data.scaling: percentiles takes these two as the ends of a range [per cent of the pixels]; data.scaling: deviation
/// takes mean +- kDeviations standard deviations.
inline constexpr double kLowPercentile = 0.5, kHighPercentile = 99.5, kDeviations = 2;

}  // namespace ditrain::dataset
