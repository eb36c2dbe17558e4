// What a data path holds, for people (a table) and programs (JSON), and what ditrain would make of it. Knows rasters,
// image files, shards of tiles and shards of latents, one file or a folder of them.
#pragma once
#include <cstdint>
#include <string>

namespace ditrain::scenes {

struct Inspection {
  std::string table;    ///< lines of text
  int64_t damaged = 0;  ///< files that cannot be read: the table and the JSON name each with its problem
  std::string json;  ///< {"path", "kind", "classes", "files": [{"file", "dtype", "shape": [C, H, W], "nodata", "bands",
                     ///< "crs", "valid": pixels per band, "mean", "min", "max", ...}], ...}
};

/// Reads every pixel once. Classes are those that the data set would have. Errors: InputError: nothing that is data
Inspection inspect_path(const std::string& path);

}  // namespace ditrain::scenes
