// Windows of a scene on its grid, whatever the grids of its files.
#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "ditrain/scenes/scenes.hpp"

namespace ditrain::scenes {

/// A window of all bands, and where pixels are missing by a mask of the source.
struct ScenePixels {
  std::vector<std::byte> numbers;  ///< [bands, height, width] of the scene's type
  std::vector<uint8_t> valid;      ///< [height, width]; empty: no masks
  double source_bytes = 0;         ///< read from the files
};

/// Threads:  one caller at a time; every thread has a reader of its own
class SceneReader {
 public:
  ScenePixels read(const Scene& scene, const images::Window& window);

 private:
  images::Raster& open(const std::string& path);
  std::map<std::string, images::Raster> open_;
};

}  // namespace ditrain::scenes
