#include "ditrain/eval/band_metrics.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <numbers>

#include "ditrain/base/error.hpp"

namespace ditrain::eval {
namespace {

// Mean and deviation, from sums around the first number.
struct Sums {
  int64_t n = 0;
  double first = 0, sum = 0, squares = 0;
  void add(double x) {
    if (n++ == 0) first = x;
    sum += x - first, squares += (x - first) * (x - first);
  }
  double mean() const { return first + sum / double(n); }
  double deviation() const {
    const double m = sum / double(n);
    return std::sqrt(std::max(0.0, squares / double(n) - m * m));
  }
};

// A pixel in the chosen bands: digital numbers, and what they mean.
struct Pixel {
  std::vector<double> numbers, quantities;
};

// Calls use(pixel) for every pixel that is valid in all of the bands.
void visit_pixels(const dataset::TileShards& shards, const std::vector<int>& bands,
                  const std::function<void(const Pixel&)>& use) {
  std::vector<double> planes;
  Pixel pixel{std::vector<double>(bands.size()), std::vector<double>(bands.size())};
  for (const dataset::TileShard& shard : shards.shards()) {
    const int64_t n = shard.height * shard.width;
    planes.resize(size_t(n) * bands.size());
    for (int64_t tile = 0; tile < shard.count; ++tile) {
      for (size_t b = 0; b < bands.size(); ++b)
        images::to_f64(shard.type, shard.plane(tile, bands[b]), n, planes.data() + int64_t(b) * n);
      const uint8_t* valid = shard.valid(tile);
      for (int64_t p = 0; p < n; ++p) {
        bool good = valid == nullptr || valid[p] != 0;
        for (size_t b = 0; b < bands.size() && good; ++b) {
          const dataset::TileBand& band = shard.bands[size_t(bands[b])];
          pixel.numbers[b] = planes[size_t(int64_t(b) * n + p)];
          pixel.quantities[b] = band.quantity(pixel.numbers[b]);
          good = !is_missing(pixel.numbers[b], band);
        }
        if (good) use(pixel);
      }
    }
  }
}

double angle_degrees(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  if (aa == 0 || bb == 0) return 0;
  return std::acos(std::clamp(ab / std::sqrt(aa * bb), -1.0, 1.0)) * 180 / std::numbers::pi;
}

struct Composites {
  std::vector<Sums> bands, spectrum;  // of numbers, and of quantities
  Sums ndvi, angle;
  std::vector<double> mean_spectrum() const {
    std::vector<double> all;
    for (const Sums& s : spectrum) all.push_back(s.mean());
    return all;
  }
};

PixelComparison compare(const std::string& name, const Sums& real, const Sums& generated) {
  PixelComparison c{name, real.mean(), real.deviation(), generated.mean(), generated.deviation()};
  c.frechet = std::pow(c.real_mean - c.generated_mean, 2) + std::pow(c.real_deviation - c.generated_deviation, 2);
  return c;
}

Composites sums_of(const dataset::TileShards& shards, const std::vector<int>& bands,
                   const dataset::ColourBands& colours) {
  Composites side;
  side.bands.resize(bands.size()), side.spectrum.resize(bands.size());
  visit_pixels(shards, bands, [&](const Pixel& x) {
    for (size_t b = 0; b < bands.size(); ++b) side.bands[b].add(x.numbers[b]), side.spectrum[b].add(x.quantities[b]);
    if (colours.nir < 0 || colours.red < 0) return;
    const double nir = std::max(0.0, double(x.quantities[size_t(colours.nir)])),
                 red = std::max(0.0, double(x.quantities[size_t(colours.red)]));
    if (nir + red > 0) side.ndvi.add((nir - red) / (nir + red));
  });
  if (side.bands.front().n == 0) throw InputError({.where = shards.path(), .what = "no pixel is valid in all bands"});
  return side;
}

}  // namespace

BandComparison compare_bands(const std::string& real_path, const std::string& generated_path) {
  for (const std::string& path : {real_path, generated_path})
    if (std::filesystem::exists(path) && !dataset::holds_tiles(path))
      throw InputError({.where = path,
                        .what = "there are no tiles",
                        .expected = "safetensors shards of ditdata make or ditsample",
                        .hint = "--metrics fid, kid or pr for images"});
  const dataset::TileShards real(real_path), generated(generated_path);
  const std::vector<std::string> real_names = real.band_names(), generated_names = generated.band_names();
  std::vector<std::string> common;
  std::vector<int> real_bands, generated_bands;
  for (size_t b = 0; b < real_names.size(); ++b)
    for (size_t g = 0; g < generated_names.size(); ++g)
      if (dataset::canonical_band(real_names[b]) == dataset::canonical_band(generated_names[g])) {
        common.push_back(real_names[b]), real_bands.push_back(int(b)), generated_bands.push_back(int(g));
        real.common_band(int64_t(b)), generated.common_band(int64_t(g));  // or a mean of numbers means nothing
      }
  if (common.empty())
    throw InputError({.where = generated_path,
                      .what = "no band in common with " + real_path,
                      .got = fmt::format("{}", fmt::join(generated_names, ", ")),
                      .expected = fmt::format("{}", fmt::join(real_names, ", "))});
  const std::vector<std::string>& all = generated_names.size() > real_names.size() ? generated_names : real_names;
  const dataset::ColourBands colours = dataset::find_common_colours(common, all).first;
  Composites a = sums_of(real, real_bands, colours), b = sums_of(generated, generated_bands, colours);
  BandComparison out;
  for (size_t i = 0; i < common.size(); ++i) {
    out.bands.push_back(compare(common[i], a.bands[i], b.bands[i]));
    const dataset::TileBand &x = real.bands()[size_t(real_bands[i])],
                            &y = generated.bands()[size_t(generated_bands[i])];
    if (x.scale != y.scale || x.offset != y.offset)
      out.other_scales += (out.other_scales.empty() ? "" : ", ") + common[i];
  }
  if (a.ndvi.n > 0 && b.ndvi.n > 0) out.ndvi = compare("ndvi", a.ndvi, b.ndvi);
  if (common.size() == 1) return out;
  const std::vector<double> mean = a.mean_spectrum();
  visit_pixels(real, real_bands, [&](const Pixel& x) { a.angle.add(angle_degrees(x.quantities, mean)); });
  visit_pixels(generated, generated_bands, [&](const Pixel& x) { b.angle.add(angle_degrees(x.quantities, mean)); });
  out.angle = compare("spectral angle", a.angle, b.angle);
  out.angle_of_means = angle_degrees(mean, b.mean_spectrum());
  return out;
}

std::string table_of(const BandComparison& c) {
  std::string text = fmt::format("{:<16}{:>12}{:>12}{:>12}{:>12}{:>14}\n", "pixels of", "real mean", "deviation",
                                 "generated", "deviation", "frechet");
  const auto add = [&](const PixelComparison& p) {
    text += fmt::format("{:<16}{:>12.5g}{:>12.5g}{:>12.5g}{:>12.5g}{:>14.6g}\n", p.name, p.real_mean, p.real_deviation,
                        p.generated_mean, p.generated_deviation, p.frechet);
  };
  for (const PixelComparison& p : c.bands) add(p);
  if (c.ndvi) add(*c.ndvi);
  if (c.angle) {
    add(*c.angle);
    text += fmt::format("angle between the mean spectra: {:.4g} degrees\n", c.angle_of_means);
  }
  return text;
}

}  // namespace ditrain::eval
