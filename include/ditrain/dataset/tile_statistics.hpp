// Statistics of the bands of tiles, from the pixels that are not missing; stats.json beside the shards.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "ditrain/dataset/tile_shards.hpp"

namespace ditrain::dataset {

struct BandStatistics {
  std::string name;
  int64_t valid = 0, missing = 0;  ///< pixels
  double mean = 0, deviation = 0, min = 0, max = 0;
  /// By per cent. The p-th is the least number that p % of the pixels do not exceed.
  std::map<double, double> percentiles = {};

  /// Errors:   InputError if it is not among them
  double percentile(double p) const;
};

struct TileStatistics {
  int64_t tiles = 0;
  images::PixelType type = images::PixelType::kU8;
  std::vector<BandStatistics> bands;
};

/// Percentiles are exact for every type. The number of threads, each at another band, changes no number.
/// Memory:   512 KiB per band, for f32 6 MiB; the pages of one shard at a time
/// Errors:   InputError for a band without a single pixel
TileStatistics statistics_of(const TileShards& shards, int threads = 1);

std::string statistics_path(const std::string& shards);  ///< PATH/stats.json; beside a single file
void write_statistics(const std::string& path, const TileStatistics& statistics);
/// Errors:   InputError, where = path: not such a file
TileStatistics read_statistics(const std::string& path);

}  // namespace ditrain::dataset
