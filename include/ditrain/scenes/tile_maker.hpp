// Cuts scenes into tiles and writes them as the shards of tile_shards.hpp. Threads read and cut pieces of scenes; one
// thread writes, in the order of the scenes, so that neither the number of threads nor an interruption changes a byte.
// A shard gets its name when it is complete, and records where the next one begins: an interrupted job resumes there.
#pragma once
#include <functional>
#include <string>

#include "ditrain/scenes/scenes.hpp"

namespace ditrain::scenes {

struct TileJob {
  SceneList scenes;
  std::string out;          ///< folder; created if it is missing
  int64_t tile = 256;       ///< side in pixels
  double max_nodata = 0.1;  ///< a tile is dropped if a larger share of its pixels is missing in any band
  int threads = 1;
  int64_t shard_tiles = 1024;  ///< most tiles per shard; fewer if tiles are large
};

struct TileProgress {
  int64_t pieces = 0, of = 0;      ///< pieces of scenes read so far, and in total
  int64_t tiles = 0, dropped = 0;  ///< tiles written and dropped by this call
  double source_bytes = 0;         ///< bytes decoded by this call
};

struct TileResult {
  int64_t tiles = 0, dropped = 0;  ///< in all shards
  int64_t found = 0;               ///< tiles of shards that existed before this call
  int64_t edge_pixels = 0;         ///< pixels of scenes that are in no whole tile
  int64_t small_scenes = 0;        ///< scenes smaller than a tile
};

/// Cuts whole tiles, starting at the upper left corner of each scene; the remaining pixels at the right and lower edge
/// are counted.
/// Numerics: coarser bands repeat their pixels on the grid of the scene; finer ones (a chosen resolution) are averaged
///           over the valid pixels, weighted by area. A tile without any valid pixel in a band is dropped whatever
///           max_nodata is
/// Memory:   some (threads + 1) x 100 MiB, 128 MiB of GDAL's blocks, and a shard of at most 64 MiB
/// Errors:   InputError: a file that is damaged, a folder that holds tiles that were made in another way or that
///           another process writes to, no tile at all; RunError if the disk is full: whole shards stay
TileResult make_tiles(const TileJob& job, const std::function<void(const TileProgress&)>& progress = {});

}  // namespace ditrain::scenes
