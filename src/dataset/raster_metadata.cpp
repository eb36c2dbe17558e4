#include "ditrain/dataset/raster_metadata.hpp"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numbers>

#include "ditrain/base/pattern.hpp"

namespace ditrain::dataset {
namespace {

constexpr double kMetresPerDegree = 111320;  // of latitude, and of longitude at the equator

// Sets year, month and day by the first date in the text.
bool set_date(const std::string& text, std::vector<double>& numbers) {
  static const Pattern date("(^|[^0-9])([0-9]{4})[-_.:]?([0-9]{2})[-_.:]?([0-9]{2})([^0-9]|$)");
  Pattern::Match found;
  for (size_t at = 0; (found = date.find(text, at)); at = found.end - found.groups[5].size()) {
    bool fits = true;
    double parts[3];
    for (size_t k = 0; k < 3; ++k) {
      parts[k] = std::atof(found.groups[k + 2].c_str());
      fits = fits && parts[k] >= kMetadata[kYear + k].least && parts[k] <= kMetadata[kYear + k].greatest;
    }
    if (!fits) continue;
    std::copy(parts, parts + 3, numbers.begin() + kYear);
    return true;
  }
  return false;
}

std::string tag(const images::RasterInfo& info, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const auto found = info.tags.find(name); found != info.tags.end()) return found->second;
  return "";
}

}  // namespace

std::vector<double> metadata_of_raster(const images::RasterInfo& info) {
  std::vector<double> numbers = no_metadata();
  const std::filesystem::path path(info.path);
  for (const std::string& text :
       {tag(info, {"ACQUISITIONDATETIME", "ACQUISITION_DATE", "DATE_ACQUIRED", "SENSING_TIME"}),
        path.filename().string(), path.parent_path().filename().string(), tag(info, {"TIFFTAG_DATETIME"})})
    if (set_date(text, numbers)) break;
  const std::string clouds = tag(
      info, {"CLOUDCOVER", "CLOUD_COVER", "CLOUDY_PIXEL_PERCENTAGE", "CLOUD_COVERAGE_ASSESSMENT", "EO:CLOUD_COVER"});
  char* end = nullptr;
  const double percent = std::strtod(clouds.c_str(), &end);
  if (!clouds.empty() && *end == '\0' && percent >= 0 && percent <= 100) numbers[kCloudCover] = percent / 100;
  return numbers;
}

void set_place(const std::string& crs, const images::GeoTransform& t, int64_t width, int64_t height,
               std::vector<double>& numbers) {
  const double column = double(width) / 2, row = double(height) / 2;
  const auto at = [&](double c, double r) {
    return images::longitude_latitude(crs, t[0] + c * t[1] + r * t[2], t[3] + c * t[4] + r * t[5]);
  };
  const auto middle = at(column, row), right = at(column + 1, row), below = at(column, row + 1);
  if (!middle || !right || !below) return;
  const auto [longitude, latitude] = *middle;
  const auto metres = [&](const std::array<double, 2>& to) {
    const double east = std::remainder(to[0] - longitude, 360) * std::cos(latitude * std::numbers::pi / 180);
    return std::hypot(east, to[1] - latitude) * kMetresPerDegree;
  };
  numbers[kLongitude] = longitude, numbers[kLatitude] = latitude;
  if (const double resolution = (metres(*right) + metres(*below)) / 2; resolution <= kMetadata[kResolution].greatest)
    numbers[kResolution] = resolution;
}

}  // namespace ditrain::dataset
