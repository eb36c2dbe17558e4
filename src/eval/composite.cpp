#include "ditrain/eval/composite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/dataset/tile_statistics.hpp"

namespace ditrain::eval {
namespace {

class CompositeSet final : public ImageSet {
 public:
  CompositeSet(const std::string& path, const Composite& composite)
      : all_(open_image_set(path)), composite_(composite) {
    if (all_->tiles() == nullptr)
      throw InputError({.where = path,
                        .what = "there are no tiles with named bands",
                        .got = all_->describe(),
                        .expected = composite.describe()});
    bands_ = dataset::find_bands(shards().band_names(), composite.bands, path);
  }

  int64_t size() const override { return all_->size(); }
  std::string describe() const override { return all_->describe() + " in " + composite_.describe(); }
  std::string sha256() const override { return all_->sha256(); }
  std::string facts() const override { return all_->facts(); }

  EvalImage image(int64_t i) override {
    const dataset::TileShard& shard = shards().shard_of(i);
    const int64_t tile = i - shard.first;
    EvalImage image{.height = shard.height, .width = shard.width, .channels = 3};
    image.name = fmt::format("{}, tile {}", shard.file.path(), tile);
    image.u8.resize(size_t(3 * shard.height * shard.width));
    for (size_t c = 0; c < 3; ++c) {
      const double low = composite_.low[c], width = composite_.high[c] - low;
      const dataset::TileBand& band = shard.bands[size_t(bands_[c])];
      uint8_t* to = image.u8.data() + c;
      for (const double x : dataset::filled_plane(shard, tile, bands_[c])) {
        *to = uint8_t(std::lround(255 * std::clamp((band.quantity(x) - low) / width, 0.0, 1.0)));
        to += 3;
      }
    }
    return image;
  }

 private:
  const dataset::TileShards& shards() const { return *all_->tiles(); }

  std::unique_ptr<ImageSet> all_;
  Composite composite_;
  std::vector<int> bands_;
};

void add_band(Composite& composite, const dataset::TileShards& reference, const dataset::TileStatistics& statistics,
              int band) {
  const dataset::TileBand& facts = reference.common_band(band);
  const dataset::BandStatistics& numbers = statistics.bands[size_t(band)];
  const auto [low, high] =
      std::minmax({facts.quantity(numbers.percentile(kStretchLow)), facts.quantity(numbers.percentile(kStretchHigh))});
  if (!(high > low))
    throw InputError({.where = reference.path(),
                      .what = fmt::format("band {} is constant: its percentiles {} and {} are one number", facts.name,
                                          kStretchLow, kStretchHigh),
                      .got = fmt::format("{}", low),
                      .hint = "--features pixels, or --metrics bands"});
  composite.bands.push_back(facts.name), composite.low.push_back(low), composite.high.push_back(high);
}

}  // namespace

std::string Composite::describe() const {
  std::string text;
  for (size_t b = 0; b < bands.size(); ++b)
    text += fmt::format("{}{} {:.6g} to {:.6g}", b == 0 ? "" : ", ", bands[b], low[b], high[b]);
  return fmt::format("{} ({})", name, text);
}

std::vector<Composite> composites_of(const dataset::TileShards& reference, const std::vector<std::string>& other_names,
                                     int threads) {
  const dataset::ColourBands c = dataset::find_common_colours(reference.band_names(), other_names).first;
  std::vector<Composite> all;
  if (!c.has_rgb() && !c.has_false_colour()) return all;
  const dataset::TileStatistics statistics = dataset::statistics_of(reference, threads);
  const auto add = [&](const char* name, std::initializer_list<int> bands) {
    for (Composite& composite = all.emplace_back(Composite{.name = name, .bands = {}, .low = {}, .high = {}});
         const int band : bands)
      add_band(composite, reference, statistics, band);
  };
  if (c.has_rgb()) add("true colour", {c.red, c.green, c.blue});
  if (c.has_false_colour()) add("false colour", {c.nir, c.red, c.green});
  return all;
}

std::vector<Composite> unstretched_composite(const dataset::TileShards& tiles) {
  const dataset::ColourBands c = dataset::find_colours(tiles.band_names());
  if (!c.has_rgb() || tiles.type() != images::PixelType::kU8) return {};
  Composite composite{.name = "true colour", .bands = {}, .low = {}, .high = {}, .unstretched = true};
  for (const int band : {c.red, c.green, c.blue}) {
    const dataset::TileBand& facts = tiles.common_band(band);
    composite.bands.push_back(facts.name);
    composite.low.push_back(facts.quantity(0)), composite.high.push_back(facts.quantity(255));
  }
  return {composite};
}

std::unique_ptr<ImageSet> composite_set(const std::string& path, const Composite& composite) {
  return std::make_unique<CompositeSet>(path, composite);
}

}  // namespace ditrain::eval
