#include "ditrain/eval/band_metrics.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "dataset/tile_fixture.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/eval/band_picture.hpp"

using namespace ditrain;
using dataset::TestTiles;

TEST_CASE("band metrics: means, deviations, NDVI and angles of known pixels") {
  const dataset::ScratchFolder scratch;
  TestTiles real{.n = 1, .side = 2, .bands = {"Red", "B8 NIR"}, .metadata = {{"nodata", "[9, null]"}}};
  real.write(scratch / "real.safetensors", std::vector<uint16_t>{100, 100, 300, 9, 300, 300, 300, 1}, "U16");
  TestTiles generated{.n = 1, .side = 2, .bands = {"NIR", "b8 nir", "red"}};  // another order, and a band more
  generated.write(scratch / "generated.safetensors",
                  std::vector<float>{0, 0, 0, 0, 200, 200, 200, 200, 200, 200, 200, 200}, "F32");
  const eval::BandComparison c = eval::compare_bands(scratch / "real.safetensors", scratch / "generated.safetensors");
  REQUIRE(c.bands.size() == 2);
  CHECK(c.bands[0].name == "Red");
  const double mean = 500.0 / 3, deviation = std::sqrt((2 * 100.0 * 100 + 300.0 * 300) / 3 - mean * mean);
  CHECK(c.bands[0].real_mean == Approx(mean));
  CHECK(c.bands[0].real_deviation == Approx(deviation));
  CHECK(c.bands[0].generated_mean == 200);
  CHECK(c.bands[0].frechet == Approx((mean - 200) * (mean - 200) + deviation * deviation));
  CHECK(c.bands[1].real_mean == 300);
  CHECK(c.bands[1].frechet == 10000);
  REQUIRE(c.ndvi);
  CHECK(c.ndvi->real_mean == Approx((0.5 + 0.5 + 0) / 3));
  CHECK(c.ndvi->generated_mean == Approx(0).margin(1e-12));
  const double degrees = (std::atan2(300, mean) - std::atan2(1, 1)) * 180 / std::acos(-1);
  CHECK(c.angle_of_means == Approx(degrees));
  REQUIRE(c.angle);
  CHECK(c.angle->generated_mean == Approx(degrees));
  CHECK(eval::table_of(c).find("ndvi") != std::string::npos);
}

TEST_CASE("band metrics: NDVI and angles are of what the numbers mean") {
  const dataset::ScratchFolder scratch;
  TestTiles real{.n = 1, .side = 2, .bands = {"Red", "NIR"}};
  real.metadata = {{"scale", "[0.0001, 0.0001]"}, {"offset", "[-0.1, -0.1]"}};
  real.write(scratch / "real.safetensors", std::vector<uint16_t>{2000, 2000, 2000, 2000, 4000, 4000, 4000, 4000},
             "U16");
  TestTiles generated{.n = 1, .side = 2, .bands = {"NIR", "Red"}};  // the same reflectance: 0.1 and 0.3
  generated.write(scratch / "generated.safetensors", std::vector<float>{0.3f, 0.3f, 0.3f, 0.3f, 0.1f, 0.1f, 0.1f, 0.1f},
                  "F32");
  const eval::BandComparison c = eval::compare_bands(scratch / "real.safetensors", scratch / "generated.safetensors");
  CHECK(c.bands[0].real_mean == 2000);
  REQUIRE((c.ndvi && c.angle));
  CHECK(c.ndvi->real_mean == Approx(0.5));
  CHECK(c.ndvi->generated_mean == Approx(0.5));
  CHECK(c.angle->generated_mean == Approx(0).margin(1e-4));
  CHECK(c.angle_of_means == Approx(0).margin(1e-4));
}

TEST_CASE("band metrics: reflectances below 0 leave NDVI between -1 and 1") {
  const dataset::ScratchFolder scratch;
  TestTiles tiles{.n = 1, .side = 2, .bands = {"Red", "NIR"}};  // sums of 0.0001, of 0, and below; (0.1, 0.3)
  tiles.write(scratch / "a.safetensors", std::vector<float>{-0.0999f, -0.1f, -0.2f, 0.1f, 0.1f, 0, 0.1f, 0.3f}, "F32");
  const eval::BandComparison c = eval::compare_bands(scratch / "a.safetensors", scratch / "a.safetensors");
  REQUIRE(c.ndvi);
  CHECK(c.ndvi->real_mean == Approx((1 + 1 + 0.5) / 3));
}

TEST_CASE("band metrics: sides without a band in common and without valid pixels are refused") {
  const dataset::ScratchFolder scratch;
  TestTiles{.bands = {"x"}}.write(scratch / "x.safetensors");
  TestTiles{.bands = {"y"}}.write(scratch / "y.safetensors");
  dataset::refused([&] { eval::compare_bands(scratch / "x.safetensors", scratch / "y.safetensors"); },
                   "no band in common");
  TestTiles gone{.n = 1, .side = 2, .bands = {"x"}, .metadata = {{"nodata", "[0]"}}};
  gone.write(scratch / "gone.safetensors", std::vector<uint16_t>(4), "U16");
  dataset::refused([&] { eval::compare_bands(scratch / "gone.safetensors", scratch / "x.safetensors"); },
                   "no pixel is valid");
  std::filesystem::create_directory(scratch / "mixed");
  TestTiles{.bands = {"x"}, .metadata = {{"scale", "[1]"}}}.write(scratch / "mixed/a.safetensors");
  TestTiles{.bands = {"x"}, .metadata = {{"scale", "[2]"}}}.write(scratch / "mixed/b.safetensors");
  dataset::refused([&] { eval::compare_bands(scratch / "mixed", scratch / "x.safetensors"); },
                   "band x has another scale than in the first shard");
}

TEST_CASE("band pictures: colours by name, false colour beside them, the stretch in words") {
  dataset::Config data;
  data.kind = dataset::find_kind("tiles");
  data.bands = {"NIR", "Blue", "Green", "Red B4"};
  data.scale_low = {0, 0, 0, 100}, data.scale_high = {1000, 1000, 1000, 900};
  data.number_type = images::PixelType::kU16;
  const eval::BandPictures picture(data, 4);
  CHECK(picture.width_of(2) == 5);
  CHECK(picture.description().find("Red B4 (100 to 900)") != std::string::npos);
  const std::vector<float> chw = {1, 1, -1, -1, 0, 0, 0.5f, 0.5f};  // one row of two pixels in each band
  const images::ImageU8 image = picture(chw.data(), 1, 2);
  CHECK((image.width == 5 && image.height == 1 && image.channels == 3));
  CHECK(std::vector<uint8_t>(image.pixels.begin(), image.pixels.begin() + 3) ==
        std::vector<uint8_t>{images::to_u8(0.5f), images::to_u8(0), images::to_u8(-1)});
  CHECK(std::vector<uint8_t>(image.pixels.begin() + 6, image.pixels.begin() + 9) == std::vector<uint8_t>{0, 0, 0});
  CHECK(std::vector<uint8_t>(image.pixels.begin() + 9, image.pixels.begin() + 12) ==
        std::vector<uint8_t>{images::to_u8(1), images::to_u8(0.5f), images::to_u8(0)});

  // Of three or five bands the tiles tell that they are Sentinel-2's; without them nothing does.
  const dataset::ScratchFolder scratch;
  TestTiles{.bands = {"B2", "B3", "B4", "B8", "B8A", "B11", "B12"}}.write(scratch / "s2.safetensors");
  data.path = scratch / "s2.safetensors", data.bands = {"B2", "B3", "B4"};
  data.scale_low = {0, 0, 0}, data.scale_high = {1000, 1000, 1000};
  CHECK_THAT(eval::BandPictures(data, 3).description(), Catch::StartsWith("red, green, blue are B4 (0 to 1000), B3"));
  data.path = scratch / "gone.safetensors";
  CHECK_THAT(eval::BandPictures(data, 3).description(), Catch::StartsWith("red, green, blue are B2"));

  const eval::BandPictures plain(dataset::Config(), 4);
  CHECK(plain.description().empty());
  CHECK(plain(chw.data(), 1, 2).pixels == images::to_image(chw.data(), 4, 1, 2).pixels);
}
