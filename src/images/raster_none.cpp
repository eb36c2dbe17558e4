// The functions of raster.hpp in a build without GDAL.
#include "ditrain/base/error.hpp"
#include "ditrain/images/raster.hpp"

namespace ditrain::images {

bool has_gdal() { return false; }

void need_gdal(const std::string& path) {
  throw InputError({.where = path,
                    .what = "rasters need GDAL, which this build of ditrain does not have",
                    .hint = "apt-get install libgdal-dev, then configure and build again (cmake -DDITRAIN_GDAL=ON)"});
}

struct Raster::Open {
  RasterInfo info;
};

Raster::Raster(const std::string& path) { need_gdal(path); }
Raster::~Raster() = default;
Raster::Raster(Raster&&) noexcept = default;
Raster& Raster::operator=(Raster&&) noexcept = default;
const RasterInfo& Raster::info() const { return open_->info; }
std::vector<std::byte> Raster::read(const RasterRead&) { return {}; }
std::vector<uint8_t> Raster::read_mask(const Window&) { return {}; }

std::optional<std::array<double, 2>> longitude_latitude(const std::string&, double, double) { return {}; }

void write_geotiff(const std::string& path, const RasterToWrite&) { need_gdal(path); }

}  // namespace ditrain::images
