// Compares two sets of tiles band by band, in digital numbers and without a network. It sees what an FID of three
// colours cannot. No published numbers exist: use it to compare runs on the same data.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ditrain/dataset/tile_shards.hpp"

namespace ditrain::eval {

/// Statistics of one quantity over the pixels of both sides.
struct PixelComparison {
  std::string name;
  double real_mean = 0, real_deviation = 0, generated_mean = 0, generated_deviation = 0;
  /// (difference of the means)^2 + (difference of the deviations)^2: the Frechet distance of two normal distributions
  double frechet = 0;
};

struct BandComparison {
  std::vector<PixelComparison> bands;  ///< in digital numbers
  /// (nir - red) / (nir + red) of quantities (number * scale + offset), of which the angles are too. Those below 0,
  /// which an offset makes of dark pixels, count as 0; a pixel with two of them has no NDVI. none: a side lacks a band
  std::optional<PixelComparison> ndvi;
  /// Angles of pixels against the mean spectrum of the real side, degrees; none: one band
  std::optional<PixelComparison> angle;
  double angle_of_means = 0;      ///< between the mean spectra, degrees
  std::string other_scales = {};  ///< bands for which the two sides state different scales or offsets
};

/// Compares the bands that both sides have, matched by name.
/// Errors:   InputError if a side does not hold tiles or has no valid pixel, if no band is common, or if shards
///           of a side have other scales or offsets
BandComparison compare_bands(const std::string& real, const std::string& generated);

std::string table_of(const BandComparison& comparison);  ///< lines of text

}  // namespace ditrain::eval
