// Two sets of tiles compared band by band, in digital numbers and without a network: what an FID of three colours does
// not see. No published numbers exist; these are for runs on the same data.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ditrain/dataset/tile_shards.hpp"

namespace ditrain::eval {

/// One quantity of the pixels of both sides.
struct PixelComparison {
  std::string name;
  double real_mean = 0, real_deviation = 0, generated_mean = 0, generated_deviation = 0;
  /// (difference of the means)^2 + (difference of the deviations)^2: the Frechet distance of two normal distributions
  double frechet = 0;
};

struct BandComparison {
  std::vector<PixelComparison> bands;  ///< in digital numbers
  /// (nir - red) / (nir + red) of quantities (number * scale + offset, as angles); none: a side lacks one of the bands
  std::optional<PixelComparison> ndvi;
  std::optional<PixelComparison>
      angle;                      ///< of pixels against the mean spectrum of the real side, degrees; none: one band
  double angle_of_means = 0;      ///< between the mean spectra, degrees
  std::string other_scales = {};  ///< bands of which the sides state different scales or offsets
};

/// The bands that both sides have, by name.
/// Errors:   InputError if a side does not hold tiles or has no valid pixel, or without a band in common
BandComparison compare_bands(const std::string& real, const std::string& generated);

std::string table_of(const BandComparison& comparison);  ///< lines of text

}  // namespace ditrain::eval
