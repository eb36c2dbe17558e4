// The numbers that describe a tile of a scene and may condition a model (model.metadata), their ranges, and their
// scaling.
// Source:   DiffusionSat (Khanna et al. 2024): the same seven, scaled the same way
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/base/words.hpp"

namespace ditrain {

struct MetadataNumber {
  std::string_view name, unit;
  double least, greatest;
  double offset, range;  ///< a model is given (value + offset) / range
  double scaled(double value) const { return (value + offset) / range; }
};
inline constexpr MetadataNumber kMetadata[] = {{"longitude", "degrees east", -180, 180, 180, 360},
                                               {"latitude", "degrees north", -90, 90, 90, 180},
                                               {"resolution", "metres per pixel", 0, 1e5, 0, 1},
                                               {"cloud_cover", "a share", 0, 1, 0, 1},
                                               {"year", "a year", 1980, 2100, -1980, 120},
                                               {"month", "of the year", 1, 12, 0, 12},
                                               {"day", "of the month", 1, 31, 0, 31}};
inline constexpr size_t kNumMetadata = std::size(kMetadata);
enum MetadataIndex : size_t { kLongitude, kLatitude, kResolution, kCloudCover, kYear, kMonth, kDay };

/// All numbers unknown (NaN).
inline std::vector<double> no_metadata() {
  return std::vector<double>(kNumMetadata, std::numeric_limits<double>::quiet_NaN());
}

/// The index of a name in kMetadata.
/// Errors:   InputError, where: an unknown name
inline size_t metadata_index(std::string_view name, const std::string& where) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kNumMetadata; ++i) {
    if (kMetadata[i].name == name) return i;
    names.emplace_back(kMetadata[i].name);
  }
  refuse_word(where, "metadata", std::string(name), names);
}

/// Checks that a value is in the range of its number; NaN (unknown) passes.
/// Errors:   InputError, where: outside of its range
inline void check_metadata(size_t number, double value, const std::string& where) {
  const MetadataNumber& m = kMetadata[number];
  if (std::isnan(value) || (value >= m.least && value <= m.greatest)) return;
  refuse(where, fmt::format("{} out of range", m.name), fmt::format("{}", value),
         fmt::format("{} to {} ({}), or NaN where it is not known", m.least, m.greatest, m.unit));
}

}  // namespace ditrain
