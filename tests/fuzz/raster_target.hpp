// As targets.hpp, of rasters: GDAL between our checks before and after it. A target of its own, as it needs GDAL.
#pragma once
#include <fstream>
#include <string>
#include <string_view>

#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/images/raster.hpp"

namespace ditrain::fuzz {

/// Opening, the description, pixels and mask of a corner. GDAL reads files, so the bytes become one.
inline void read_raster(std::string_view bytes) {
  static const TemporaryFolder folder;
  const std::string path = folder / "fuzz.tif";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  try {
    images::Raster raster(path);
    const images::RasterInfo& info = raster.info();
    if (info.width < 1 || info.height < 1 || info.bands.empty()) __builtin_trap();
    images::RasterRead request{{0, int(info.bands.size()) - 1},
                               {0, 0, std::min<int64_t>(info.width, 64), std::min<int64_t>(info.height, 64)}};
    const int64_t pixels = request.window.width * request.window.height;
    if (int64_t(raster.read(request).size()) != 2 * pixels * images::pixel_bytes(info.type)) __builtin_trap();
    if (int64_t(raster.read_mask(request.window).size()) != pixels) __builtin_trap();
  } catch (const InputError&) {
  }
}

}  // namespace ditrain::fuzz
