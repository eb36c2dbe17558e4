// The numbers of base/metadata.hpp that can be read from a raster: place and resolution from its georeference, date and
// cloud cover from its tags and names.
#pragma once
#include <string>
#include <vector>

#include "ditrain/base/metadata.hpp"
#include "ditrain/images/raster.hpp"

namespace ditrain::dataset {

/// Reads date and cloud cover; a number that the raster does not state is NaN. The date comes from the first source
/// that has one: the tags of acquisition (ACQUISITIONDATETIME, DATE_ACQUIRED, ...), a YYYYMMDD (or with - _ . between)
/// in the name of the file, one in the name of its folder, TIFFTAG_DATETIME. Cloud cover is a tag in percent
/// (CLOUDCOVER, CLOUD_COVER, CLOUDY_PIXEL_PERCENTAGE).
std::vector<double> metadata_of_raster(const images::RasterInfo& info);

/// Sets longitude, latitude and resolution in `numbers`, for the middle of the `width` x `height` pixels that begin at
/// `corner`. Leaves them alone where the CRS is unknown. The resolution is the mean over rows and columns; a degree
/// counts as 111,320 m, its length at the equator.
void set_place(const std::string& crs, const images::GeoTransform& corner, int64_t width, int64_t height,
               std::vector<double>& numbers);

}  // namespace ditrain::dataset
