// Statistics of the bands of tiles over the pixels that are not missing, and their file, stats.json beside the shards.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "ditrain/dataset/tile_shards.hpp"

namespace ditrain::dataset {

struct BandStatistics {
  std::string name;
  int64_t valid = 0, missing = 0;                    ///< pixels
  double mean = 0, deviation = 0, min = 0, max = 0;  ///< in digital numbers
  /// Percentiles by p. The p-th is the least digital number that p % of the pixels do not exceed.
  std::map<double, double> percentiles = {};

  /// The p-th percentile. Errors: InputError if it is not among `percentiles`
  double percentile(double p) const;
};

struct TileStatistics {
  int64_t tiles = 0;
  images::PixelType type = images::PixelType::kU8;
  std::vector<BandStatistics> bands;
  std::string checksum = {};  ///< of the tiles, see checksum_of(); "": an earlier version wrote the file
};

/// add_to() as 16 digits.
std::string checksum_of(const TileShards& shards);

/// Computes the statistics of all bands. Percentiles are exact for every pixel type.
/// Threads:  `threads` threads take one band each at a time; results do not depend on their number
/// Memory:   512 KiB per band (f32: 6 MiB), and the pages of one shard at a time
/// Errors:   InputError for a band without a single pixel
TileStatistics statistics_of(const TileShards& shards, int threads = 1);

std::string statistics_path(const std::string& shards);  ///< FOLDER/stats.json; for one file, stats.json beside it
/// Whether the path is one file of several shards of a folder, whose stats.json is of them all.
bool is_one_of_several(const std::string& shards);
/// Advice where these tiles lack statistics, or have those of other tiles.
std::string way_to_statistics(const TileShards& shards);
void write_statistics(const std::string& path, const TileStatistics& statistics);
/// Errors:   InputError, where = path: not a file that write_statistics() wrote
TileStatistics read_statistics(const std::string& path);

}  // namespace ditrain::dataset
