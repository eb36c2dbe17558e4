// From digital numbers to what a model sees, and back. Every band has a range [low, high] that becomes [-1, 1]; numbers
// beyond it are limited. Ranges come from the config or from stats.json, are settled before a run starts and lie in its
// config from then on, so that samples can be turned back into digital numbers years later.
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "ditrain/dataset/config.hpp"
#include "ditrain/dataset/tile_shards.hpp"

namespace ditrain::dataset {

/// x of a band's digital numbers.
/// Math:     x = 2 (number - low) / (high - low) - 1, limited to [-1, 1]; in f32
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

/// The bands of a model and their ranges, as RangeScale has them.
struct BandScaling {
  std::vector<std::string> names;
  std::vector<double> low, high;
  images::PixelType type = images::PixelType::kF32;  ///< of the digital numbers
  std::vector<double> scale = {}, offset = {};       ///< quantity = number * scale + offset; empty: unknown

  int64_t channels() const { return int64_t(names.size()); }
  /// The number of that value, which is not NaN; of an integer type rounded to nearest and limited to its range.
  double number(int64_t channel, double x) const;
  /// Values [channels, pixels] as numbers of `type`, row-major bytes.
  std::vector<std::byte> numbers(const float* values, int64_t pixels) const;
  std::string describe() const;  ///< "B4 134..2877, B3 ..."
};

/// Whether the config is one of tiles, or of latents made of tiles, whose scaling is settled.
bool has_scaling(const Config& config);
/// Errors:   InputError if the lists of the config do not go together
BandScaling scaling_of(const Config& config);

/// Fills data.condition with names as the tiles write them, data.condition_low and data.condition_high, data.bands
/// (without those that are given as condition), data.scale_low, data.scale_high and data.number_* of
/// a config of tiles from its shards and,
/// where data.scaling wants it, from stats.json beside them; of latents from the tile_facts of their first shard, if it
/// has any. Values that are given stay. Other kinds are left as they are.
/// Errors:   InputError: no shards of tiles, unknown bands, no stats.json or one of other bands, a range of no width
///           (scaling would divide by zero), shards of several scales whose data.number_* are not given; latents of
///           tiles with other values than those that are given
void settle_tiles(Config& config);

/// What data.condition names: [FOLDER of tiles, BAND, ..., kValidChannel]; without a folder bands of data.path, without
/// bands all of the folder. A first word with a '/' in it, or a .safetensors file, is the folder.
struct ConditionBands {
  std::string path;  ///< "": data.path
  std::vector<std::string> bands;
  bool valid = false;  ///< one more channel, behind the bands: 1 where all of them have data, else -1
  int64_t channels() const { return int64_t(bands.size()) + (valid ? 1 : 0); }
};
inline constexpr const char* kValidChannel = "valid";
ConditionBands condition_of(const Config& config);
/// The same without the folder: what a model is given, wherever its tiles lie.
std::vector<std::string> condition_names(const Config& config);

/// Replaces NaN, which stands for missing pixels of a condition's band, by the mean of the others; by 0 if all are
/// missing.
void fill_condition(float* plane, int64_t pixels);

/// What shards of latents keep of the tiles that they were made of: metadata_of the bands as in shards of tiles, and
/// number_type, scale_low and scale_high (JSON lists) of the settled config.
std::map<std::string, std::string> tile_facts(const Config& settled);
/// The keys of tile_facts by which decoded latents become digital numbers and quantities again.
inline constexpr const char* kScalingFacts[] = {"bands", "number_type", "scale_low", "scale_high", "scale", "offset"};

/// Pixel share of percentiles that data.scaling: percentiles takes, and deviations from the mean of data.scaling:
/// deviation.
inline constexpr double kLowPercentile = 0.5, kHighPercentile = 99.5, kDeviations = 2;

}  // namespace ditrain::dataset
