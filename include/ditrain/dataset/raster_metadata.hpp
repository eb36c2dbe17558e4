// The numbers of base/metadata.hpp that a raster tells of itself: place and resolution by its georeference, date and
// clouds by its tags and names.
#pragma once
#include <string>
#include <vector>

#include "ditrain/base/metadata.hpp"
#include "ditrain/images/raster.hpp"

namespace ditrain::dataset {

/// Date and cloud cover; NaN where nothing tells them.
/// The date is that of the tags of acquisition (ACQUISITIONDATETIME, DATE_ACQUIRED, ...), else the first YYYYMMDD (or
/// with - _ . between) in the name of the file, else in that of its folder, else TIFFTAG_DATETIME. Cloud cover is a tag
/// in percent (CLOUDCOVER, CLOUD_COVER, CLOUDY_PIXEL_PERCENTAGE).
std::vector<double> metadata_of_raster(const images::RasterInfo& info);

/// Sets longitude, latitude and resolution of the middle of `width` x `height` pixels from that corner on; leaves them
/// where the CRS is unknown. Resolution is that of a degree of 111,320 m at the equator, the mean of rows and columns.
void set_place(const std::string& crs, const images::GeoTransform& corner, int64_t width, int64_t height,
               std::vector<double>& numbers);

}  // namespace ditrain::dataset
