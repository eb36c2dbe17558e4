// Rasters of many bands (GeoTIFF, COG, JPEG 2000, VRT) through GDAL, which alone knows all their layouts. Numbers come
// as they are stored: no scale, no offset, no colours. This is a component: a build without GDAL has the same
// functions, which say what is missing. Training reads tiles (dataset/tile_shards.hpp), never rasters.
//
//   Raster raster("scene.tif");
//   std::vector<std::byte> pixels = raster.read({.bands = {0, 1, 2}, .window = {0, 0, 256, 256}});
//
// Files are untrusted: sides, blocks and bytes are bounded before anything is decoded, and a truncated file is an
// error, never zeros.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/images/pixel_type.hpp"

namespace ditrain::images {

/// Whether this build has GDAL.
bool has_gdal();
/// Errors:   InputError that says what is missing and how to get it, if this build has no GDAL
void need_gdal(const std::string& path);

/// GDAL's geotransform: x = t[0] + column t[1] + row t[2], y = t[3] + column t[4] + row t[5], for the corner of a
/// pixel.
using GeoTransform = std::array<double, 6>;
inline constexpr GeoTransform kNoGeoTransform = {0, 1, 0, 0, 0, 1};  ///< GDAL's, of files without a location

struct RasterBand {
  std::string name;                   ///< its description; "": none
  std::optional<double> nodata = {};  ///< the number that says "missing"; may be NaN
  double scale = 1, offset = 0;       ///< quantity = number * scale + offset
  bool is_alpha = false;              ///< not data: where it is 0 the others are missing. Not of a band with a name
};

struct RasterInfo {
  std::string path, format;  ///< format: GDAL's name of the driver
  int64_t width = 0, height = 0;
  PixelType type = PixelType::kU8;
  std::vector<RasterBand> bands;
  std::string crs;                        ///< WKT; "": none, or no transform
  int64_t epsg = 0;                       ///< of crs; 0: it has none
  std::optional<GeoTransform> transform;  ///< none: no location, or control points only
  bool has_control_points = false;        ///< and no transform
  bool has_mask = false, is_palette = false;
  bool mask_is_alpha = false;                    ///< the mask is a band
  std::map<std::string, std::string> tags = {};  ///< of the file, and of its domain IMAGERY; names in upper case
  std::vector<std::string> files;                ///< the file and those that belong to it (masks, sources of a VRT)
  int64_t block_width = 0, block_height = 0;     ///< what is decoded at a time
};

/// Degrees east and north of a point in a CRS (WKT); nullopt if the CRS is unknown or the point is outside of it.
std::optional<std::array<double, 2>> longitude_latitude(const std::string& crs, double x, double y);

struct Window {
  int64_t x = 0, y = 0, width = 0, height = 0;
};

/// One set of bands in one window.
struct RasterRead {
  std::vector<int> bands;  ///< numbers from 0
  Window window;           ///< inside the raster
};

/// An open raster.
/// Errors:   InputError, where = path: no such file, a format that is not allowed (GeoTIFF, JPEG 2000 and VRT are),
///           sides or blocks that no scene has (a decompression bomb), types without a place here (complex, 64-bit
///           integers), a VRT that reads from a network, a pipe or raw bytes, scales that are no numbers, no GDAL
/// Threads:  one caller at a time; several objects of one file are independent
class Raster {
 public:
  explicit Raster(const std::string& path);
  ~Raster();
  Raster(Raster&&) noexcept;
  Raster& operator=(Raster&&) noexcept;

  const RasterInfo& info() const;

  /// Numbers of info().type, [bands, height, width].
  /// Errors:   InputError: damaged or truncated; LogicFault for a window that is not inside
  std::vector<std::byte> read(const RasterRead& request);
  /// 1 where the raster's mask (of its own, beside it, or alpha) has data, else 0; [height, width]. Not of nodata.
  std::vector<uint8_t> read_mask(const Window& window);

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

struct RasterToWrite {
  int64_t width = 0, height = 0;
  PixelType type = PixelType::kF32;
  std::vector<RasterBand> bands = {};
  std::string crs = {};
  std::optional<GeoTransform> transform = {};
  const void* pixels = nullptr;  ///< [bands, height, width]
};

/// Writes a GeoTIFF under a temporary name and renames it.
/// Errors:   RunError (disk full, ...); InputError without GDAL
void write_geotiff(const std::string& path, const RasterToWrite& raster);

}  // namespace ditrain::images
