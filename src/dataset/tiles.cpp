// Tiles of scenes (tile_shards.hpp): chosen bands, scaled to [-1, 1]. Shards stay mapped; a tile is converted when it
// is wanted. A missing pixel gets the mean of the valid pixels of its band in its tile, so that it neither adds an edge
// nor shifts the colours; a tile in which a band has no valid pixel is unreadable (data.on_bad_file). With
// data.condition the bands that are given come from the same or from other shards; their missing pixels are filled too,
// and the loss leaves out the pixels that a predicted band lacks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "ditrain/base/error.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/files/checksum.hpp"

namespace ditrain::dataset {
namespace {

class Tiles final : public Dataset {
 public:
  Tiles(const OpenRequest& request, const Config& settled)
      : Dataset(settled, request.shape),
        shards_(settled.path),
        scaling_(scaling_of(settled)),
        condition_(condition_of(settled)) {
    bands_ = find_bands(shards_.band_names(), settled.bands, "data.bands");
    size_ = shards_.size();
    num_classes_ = shards_.num_classes();
    class_names_ = shards_.classes();
    for (const TileShard& shard : shards_.shards())
      for (const int64_t label : shard.labels) note_class(label);
    for (const TileShard& shard : shards_.shards())
      for (size_t i = 0; i < shard.numbers.size(); ++i)
        if (!std::isnan(shard.numbers[i])) known_numbers_[i % kNumMetadata] = true;
    for (const std::string& name : shards_.other_files())
      if (name != "stats.json") ignore_file(name);
    warn_of_unfinished(shards_);
    check_channels(settled, shape_.channels, condition_.channels());
    check_shape();
    if (condition_.channels() > 0) open_condition(settled);
  }

  std::string describe() const override {
    const TileShard& s = shards_.shards().front();
    const std::string labels = num_classes_ == 0 ? "no labels" : std::to_string(num_classes_) + " classes";
    return "tiles '" + shards_.path() + "': " + std::to_string(size_) + " of " + std::to_string(s.height) + " x " +
           std::to_string(s.width) + " (" + std::string(word_of(s.type)) + ") in " +
           std::to_string(shards_.shards().size()) + " shards, " + labels +
           ", bands in [-1, 1]: " + scaling_.describe() + describe_condition();
  }

  std::string checksum_of_samples() const override {
    files::Checksum sum;
    add_to(sum, shards_);
    const std::string scaling = scaling_.describe();
    sum.add(scaling.data(), scaling.size());
    return files::to_hex(sum.value());
  }

 private:
  void warn_of_unfinished(const TileShards& shards) {
    if (const std::string text = shards.describe_unfinished(); !text.empty()) warnings_.push_back(text);
  }

  void check_shape() const {
    const TileShard& s = shards_.shards().front();
    if (shape_.height != s.height || shape_.width != s.width)
      throw ShapeError({.where = "data",
                        .what = "the tiles have another size than the model's input",
                        .got = std::to_string(s.height) + " x " + std::to_string(s.width),
                        .expected = std::to_string(shape_.height) + " x " + std::to_string(shape_.width),
                        .hint = "model.input_size of these tiles, or ditdata make --tile N"});
  }

  void open_condition(const Config& settled) {
    if (!condition_.path.empty()) warn_of_unfinished(other_.emplace(condition_.path));
    given_bands_ = find_bands(given().band_names(), condition_.bands, "data.condition");
    for (size_t c = 0; c < given_bands_.size(); ++c)
      given_scales_.emplace_back(settled.condition_low[c], settled.condition_high[c]);
    condition_channels_ = condition_.channels();
    std::string way = "ditdata make with the same --tile on scenes of the same grid (--resolution resamples)";
    const auto same = [&](const char* what, const std::string& got, const std::string& want) {
      if (got != want)
        refuse("data.condition",
               fmt::format("the tiles in {} do not go with those of data.path: {}", given().path(), what), got, want,
               way);
    };
    const auto side = [](const TileShards& all) {
      return fmt::format("{} x {}", all.shards().front().height, all.shards().front().width);
    };
    same("their size", side(given()), side(shards_));
    const int64_t dropped = given().dropped(), dropped_here = shards_.dropped();
    if (dropped + dropped_here > 0)
      way += fmt::format(
          " and with --max-nodata 1, or one folder of rasters with the bands of both: {} and {} tiles were dropped for "
          "missing pixels",
          dropped, dropped_here);
    same("their number", std::to_string(given().size()), std::to_string(shards_.size()));
    for (int64_t i = 0; other_ && i < size_; ++i) {
      const std::vector<double> here = corners_of(shards_, i), there = corners_of(*other_, i);
      if (here.empty() || there.empty()) continue;
      const double half = std::hypot(here[2] - here[0], here[3] - here[1]) /
                          std::hypot(double(shape_.width), double(shape_.height)) / 2;
      bool apart = false;  // by more than half a pixel
      for (size_t k = 0; k < 4; ++k) apart |= std::abs(here[k] - there[k]) > half;
      if (apart)
        same(fmt::format("tile {} covers another place", i).c_str(), fmt::format("{:.9g}", fmt::join(there, ", ")),
             fmt::format("{:.9g}", fmt::join(here, ", ")));
    }
  }

  const TileShards& given() const { return other_ ? *other_ : shards_; }

  // x and y of its first corner and of the opposite one; empty: not known.
  static std::vector<double> corners_of(const TileShards& shards, int64_t tile) {
    const TileShard& shard = shards.shard_of(tile);
    if (!shard.file.contains("geotransform")) return {};
    const auto g = weights::to_f64(weights::row_range(shard.file.tensor("geotransform"), tile - shard.first, 1));
    const auto w = double(shard.width), h = double(shard.height);
    return {g[0], g[3], g[0] + w * g[1] + h * g[2], g[3] + w * g[4] + h * g[5]};
  }

  std::string describe_condition() const {
    if (condition_.channels() == 0) return "";
    return fmt::format("; given {}{}{}", fmt::join(condition_.bands, ", "),
                       condition_.valid ? " and where they have data" : "",
                       condition_.path.empty() ? "" : " of '" + condition_.path + "'");
  }

  int64_t pixels() const { return shape_.height * shape_.width; }

  int64_t label_of(int64_t index) const override {
    const TileShard& shard = shards_.shard_of(index);
    return shard.labels.empty() ? 0 : shard.labels[size_t(index - shard.first)];
  }

  void read(int64_t index, bool flip, float* chw, Condition* condition) const override {
    const TileShard& shard = shards_.shard_of(index);
    const int64_t tile = index - shard.first;
    std::vector<uint8_t> valid(size_t(condition_channels_ == 0 ? 0 : pixels()), 1);
    for (int64_t c = 0; c < shape_.channels; ++c) {
      float* out = chw + c * pixels();
      const RangeScale scale(scaling_.low[size_t(c)], scaling_.high[size_t(c)]);
      if (read_band(shard, tile, bands_[size_t(c)], scale, out, valid) > 0)
        fill_missing(shard, tile, bands_[size_t(c)], out);
    }
    condition->label = label_of(index);
    if (!shard.numbers.empty()) {
      const auto row = shard.numbers.begin() + tile * int64_t(kNumMetadata);
      condition->numbers.assign(row, row + kNumMetadata);
    }
    if (std::count(valid.begin(), valid.end(), 0) > 0) condition->valid = std::move(valid);
    if (condition_channels_ > 0) condition->image = read_given(index);
    if (!flip) return;
    mirror(chw, shape_.channels);
    mirror(condition->image.data(), condition_channels_);
    if (!condition->valid.empty()) mirror(condition->valid.data(), 1);
  }

  std::vector<float> read_given(int64_t index) const {
    const TileShard& shard = given().shard_of(index);
    std::vector<float> image(size_t(condition_channels_ * pixels()));
    std::vector<uint8_t> valid(static_cast<size_t>(pixels()), 1);
    float* out = image.data();
    for (size_t c = 0; c < given_bands_.size(); ++c, out += pixels())
      if (read_band(shard, index - shard.first, given_bands_[c], given_scales_[c], out, valid) > 0)
        fill_condition(out, pixels());
    for (size_t p = 0; condition_.valid && p < valid.size(); ++p) out[p] = valid[p] != 0 ? 1.0f : -1.0f;
    return image;
  }

  // The number of missing pixels, which become NaN and 0 in `valid` (may be empty).
  static int64_t read_band(const TileShard& shard, int64_t tile, int band, const RangeScale& scale, float* out,
                           std::vector<uint8_t>& valid) {
    int64_t missing = 0;
    for_pixels(shard, tile, band, [&](int64_t p, auto x, bool is_gone) {
      const float scaled = scale(x);
      out[p] = is_gone ? NAN : scaled;
      missing += is_gone;
    });
    for (size_t p = 0; missing > 0 && p < valid.size(); ++p)
      if (std::isnan(out[p])) valid[p] = 0;
    return missing;
  }

  template <class T>
  void mirror(T* chw, int64_t channels) const {
    for (T* row = chw; row != chw + channels * pixels(); row += shape_.width) std::reverse(row, row + shape_.width);
  }

  TileShards shards_;
  BandScaling scaling_;
  std::vector<int> bands_;
  ConditionBands condition_;
  std::optional<TileShards> other_;  // that the condition is of, if not of shards_
  std::vector<int> given_bands_;
  std::vector<RangeScale> given_scales_;
};

}  // namespace

std::unique_ptr<Dataset> open_tiles(const OpenRequest& request) {
  Config settled = request.config;
  settle_tiles(settled);
  return std::make_unique<Tiles>(request, settled);
}

}  // namespace ditrain::dataset
