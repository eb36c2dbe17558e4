// Scenes cut into tiles, written as the shards of tile_shards.hpp. Threads read and cut pieces of scenes; one writes,
// in the order of the scenes, so that neither the number of threads nor an interruption changes a byte. A shard appears
// under its name when it is whole and says where the next one begins: started again, the work goes on from there.
#pragma once
#include <functional>
#include <string>

#include "ditrain/scenes/scenes.hpp"

namespace ditrain::scenes {

struct TileJob {
  SceneList scenes;
  std::string out;          ///< folder; created if it is missing
  int64_t tile = 256;       ///< side in pixels
  double max_nodata = 0.1;  ///< a tile with a greater share of pixels that are missing in any band is dropped
  int threads = 1;
  int64_t shard_tiles = 1024;  ///< at most; fewer if they are large
};

struct TileProgress {
  int64_t pieces = 0, of = 0;      ///< of scenes, read so far
  int64_t tiles = 0, dropped = 0;  ///< of this call
  double source_bytes = 0;         ///< decoded by this call
};

struct TileResult {
  int64_t tiles = 0, dropped = 0;  ///< in all shards
  int64_t found = 0;               ///< tiles of shards that were there before this call
  int64_t edge_pixels = 0;         ///< of the scenes, in no whole tile
  int64_t small_scenes = 0;        ///< smaller than a tile, so without any
};

/// Cuts whole tiles from the upper left corner of each scene on; what is left at the right and lower edge is counted.
/// Numerics: coarser bands repeat their pixels on the grid of the scene; finer ones (a chosen resolution) are averaged
///           over the valid pixels, weighted by area. A tile without any valid pixel in a band is dropped whatever
///           max_nodata is
/// Memory:   some (threads + 1) x 100 MiB, 128 MiB of GDAL's blocks, and a shard of at most 64 MiB
/// Errors:   InputError: a file that is damaged, a folder that holds tiles that were made in another way or that
///           another process writes to, no tile at all; RunError if the disk is full: whole shards stay
TileResult make_tiles(const TileJob& job, const std::function<void(const TileProgress&)>& progress = {});

}  // namespace ditrain::scenes
