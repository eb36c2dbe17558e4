// Small rasters that tests write themselves: GeoTIFFs by our writer, everything else by VRT files, which are text.
#pragma once
#include <fmt/format.h>

#include <string>
#include <vector>

#include "ditrain/images/raster.hpp"

namespace ditrain::images {

/// Numbers that differ by band, row and column, all below 250.
inline int test_number(int64_t band, int64_t y, int64_t x) { return int((17 * band + 5 * y + 3 * x) % 250); }

/// WGS 84 / UTM zone 33N, as short as GDAL takes it.
inline std::string utm33() {
  return R"(PROJCS["WGS 84 / UTM zone 33N",GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]],)"
         R"(PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433],AUTHORITY["EPSG","4326"]],)"
         R"(PROJECTION["Transverse_Mercator"],PARAMETER["latitude_of_origin",0],PARAMETER["central_meridian",15],)"
         R"(PARAMETER["scale_factor",0.9996],PARAMETER["false_easting",500000],PARAMETER["false_northing",0],)"
         R"(UNIT["metre",1],AXIS["Easting",EAST],AXIS["Northing",NORTH],AUTHORITY["EPSG","32633"]])";
}

template <class T>
void write_test_raster(const std::string& path, PixelType type, const std::vector<std::string>& bands, int64_t height,
                       int64_t width, const std::vector<T>& numbers, std::optional<GeoTransform> transform = {},
                       std::optional<double> nodata = {}) {
  RasterToWrite raster{.width = width, .height = height, .type = type, .transform = transform};
  for (const std::string& name : bands) raster.bands.push_back({.name = name, .nodata = nodata});
  if (transform) raster.crs = utm33();
  raster.pixels = numbers.data();
  write_geotiff(path, raster);
}

/// u16, test_number plus `more`.
inline void write_u16(const std::string& path, const std::vector<std::string>& bands, int64_t height, int64_t width,
                      std::optional<GeoTransform> transform = {}, std::optional<double> nodata = {}, int more = 0) {
  std::vector<uint16_t> numbers;
  for (size_t b = 0; b < bands.size(); ++b)
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x) numbers.push_back(uint16_t(test_number(int64_t(b), y, x) + more));
  write_test_raster(path, PixelType::kU16, bands, height, width, numbers, transform, nodata);
}

/// A VRT with the bands of one file and these lines in each band, and others before the bands.
inline std::string vrt_of(const std::string& source, int bands, int64_t height, int64_t width,
                          const std::string& in_band = "", const std::string& before = "",
                          const std::string& type = "UInt16") {
  std::string text = fmt::format("<VRTDataset rasterXSize=\"{}\" rasterYSize=\"{}\">\n{}", width, height, before);
  for (int b = 1; b <= bands; ++b)
    text += fmt::format(
        "<VRTRasterBand dataType=\"{}\" band=\"{}\">{}<SimpleSource><SourceFilename relativeToVRT=\"1\">{}"
        "</SourceFilename><SourceBand>{}</SourceBand></SimpleSource></VRTRasterBand>\n",
        type, b, in_band, source, b);
  return text + "</VRTDataset>\n";
}

}  // namespace ditrain::images
