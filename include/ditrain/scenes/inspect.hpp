// Describes the contents of a data path, as a table and as JSON, and how ditrain would use them: rasters, image files,
// shards of tiles or of latents, one file or a folder of them.
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

/// Reads every pixel once. The classes are those that a data set from this path would have; none if it is refused.
/// Errors:   InputError if there is no data
Inspection inspect_path(const std::string& path);

}  // namespace ditrain::scenes
