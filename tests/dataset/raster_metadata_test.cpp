#include "ditrain/dataset/raster_metadata.hpp"

#include <catch2/catch.hpp>

#include "../images/raster_fixture.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using namespace ditrain::dataset;

namespace {

std::vector<double> told(const std::string& path, const std::map<std::string, std::string>& tags) {
  images::RasterInfo info;
  info.path = path, info.tags = tags;
  return metadata_of_raster(info);
}

}  // namespace

TEST_CASE("raster metadata: dates come from tags of acquisition, then from names, then from the time of the file") {
  const auto date = [](const std::string& path, const std::map<std::string, std::string>& tags) {
    const std::vector<double> n = told(path, tags);
    return std::vector<double>{n[kYear], n[kMonth], n[kDay]};
  };
  using Date = std::vector<double>;
  CHECK(date("x/S2A_MSIL2A_20200601T101031_N0500.tif", {}) == Date{2020, 6, 1});
  CHECK(date("x/LC08_L1TP_193024_20190704_20200823_B4.TIF", {}) == Date{2019, 7, 4});
  CHECK(date("2021-12-31/scene.tif", {{"TIFFTAG_DATETIME", "2024:01:01 00:00:00"}}) == Date{2021, 12, 31});
  CHECK(date("x/scene_20201301.tif", {{"TIFFTAG_DATETIME", "2024:01:02 00:00:00"}}) == Date{2024, 1, 2});
  CHECK(date("x/a_20200601.tif", {{"ACQUISITIONDATETIME", "2018-03-04T01:02:03Z"}}) == Date{2018, 3, 4});
  CHECK(std::isnan(date("x/scene_123456789.tif", {})[0]));
  CHECK(date("x/00001234_20200714.tif", {{"TIFFTAG_DATETIME", "2023:01:02 00:00:00"}}) == Date{2020, 7, 14});
  CHECK(told("", {{"CLOUD_COVER", "12.5"}})[kCloudCover] == 0.125);
  CHECK(told("", {{"CLOUD_COVERAGE_ASSESSMENT", "3"}})[kCloudCover] == 0.03);
  CHECK(std::isnan(told("", {{"CLOUD_COVER", "few"}})[kCloudCover]));
}

TEST_CASE("raster metadata: the place of a tile follows from its georeference") {
  if (!images::has_gdal()) SKIP("no GDAL");
  std::vector<double> numbers = no_metadata();
  // UTM 33N: 500 km east is its central meridian, 15 degrees; 5,400 km north is 48.75 degrees.
  set_place(images::utm33(), {499840, 10, 0, 5400160, 0, -10}, 32, 32, numbers);
  CHECK(numbers[kLongitude] == Approx(15).margin(1e-6));
  CHECK(numbers[kLatitude] == Approx(48.752).margin(0.002));
  CHECK(numbers[kResolution] == Approx(10).epsilon(0.01));
  // Longitudes from 0 to 360, as grids of models have them: east of 180 is west, and a pixel across it is as wide.
  const std::string degrees =
      "GEOGCS[\"WGS 84\",DATUM[\"WGS_1984\",SPHEROID[\"WGS 84\",6378137,298.257223563]],PRIMEM[\"Greenwich\",0],"
      "UNIT[\"degree\",0.0174532925199433]]";
  for (const double west : {200.0, 179.995}) {
    numbers = no_metadata();
    set_place(degrees, {west - 0.005, 0.01, 0, 0.005, 0, -0.01}, 1, 1, numbers);
    CHECK(numbers[kLongitude] == Approx(west > 180 ? west - 360 : west).margin(1e-9));
    CHECK(numbers[kResolution] == Approx(1113.2).epsilon(1e-3));
  }
  numbers = no_metadata();
  set_place("", {0, 1, 0, 0, 0, 1}, 32, 32, numbers);
  CHECK(std::isnan(numbers[kLongitude]));
}
