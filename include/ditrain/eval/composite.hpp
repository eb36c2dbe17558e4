// Composites: three bands of tiles as an 8-bit RGB picture, the input that the Inception network takes. Bands are
// chosen by name (dataset::find_colours) and stretched by percentiles of the reference, for both sides of a comparison.
// So neither the order of the bands nor their number type changes a distance.
//
//   for (const Composite& c : composites_of(reference, generated.band_names()))
//     auto set = composite_set("tiles", c);                                   // an ImageSet of RGB
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ditrain/dataset/tile_shards.hpp"
#include "ditrain/eval/image_set.hpp"

namespace ditrain::eval {

inline constexpr double kStretchLow = 2, kStretchHigh = 98;  ///< per cent of the reference's valid pixels

struct Composite {
  std::string name;                ///< "true colour" or "false colour"
  std::vector<std::string> bands;  ///< bands shown as red, green and blue
  std::vector<double> low, high;   ///< quantities (number * scale + offset) that become 0 and 255
  bool unstretched = false;        ///< 8-bit numbers as they are, for a comparison with pictures
  bool operator==(const Composite&) const = default;
  std::string describe() const;  ///< "true colour (Red 12 to 200, Green ...)"
};

/// True colour (red, green, blue) and false colour (near infrared, red, green), each if both sides have its bands.
/// Errors:   InputError: shards of different scales, a band whose two percentiles are equal
std::vector<Composite> composites_of(const dataset::TileShards& reference, const std::vector<std::string>& other_names,
                                     int threads);

/// True colour of 8-bit tiles, unstretched, for a comparison with pictures; empty for other tiles.
/// Errors:   InputError: shards of different scales
std::vector<Composite> unstretched_composite(const dataset::TileShards& tiles);

/// The tiles at the path as pictures, [H, W, 3]. Missing pixels are filled (dataset::filled_plane); quantities are
/// clamped to [low, high].
/// Errors:   InputError: no tiles, a band that is not there
std::unique_ptr<ImageSet> composite_set(const std::string& path, const Composite& composite);

}  // namespace ditrain::eval
