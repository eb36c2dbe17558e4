#include "ditrain/scenes/tile_maker.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "dataset/tile_fixture.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/files/file_lock.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/scenes/inspect.hpp"
#include "images/raster_fixture.hpp"
#include "support/files.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using namespace ditrain::dataset;
using namespace ditrain::scenes;
using images::GeoTransform;

namespace {

constexpr GeoTransform place(double pixel) { return {500000, pixel, 0, 5400000, 0, -pixel}; }

TileJob job_of(const SceneRequest& request, const std::string& out, int64_t tile, double max_nodata = 0) {
  return {.scenes = find_scenes(request), .out = out, .tile = tile, .max_nodata = max_nodata, .threads = 2};
}

std::vector<double> band_of(const TileShards& shards, int64_t tile, int64_t band) {
  const TileShard& s = shards.shard_of(tile);
  std::vector<double> numbers(size_t(s.height * s.width));
  images::to_f64(s.type, s.plane(tile - s.first, band), int64_t(numbers.size()), numbers.data());
  return numbers;
}

std::vector<std::pair<std::string, std::string>> shards_in(const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") all.push_back({entry.path().filename(), get_file(entry.path())});
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

TEST_CASE("tile maker: every pixel of the whole tiles, with names, places and classes") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  images::write_u16(scratch.at("in/field/a.tif"), {"B2", "B3"}, 10, 13, place(10), 60000);
  images::write_u16(scratch.at("in/lake/b.tif"), {"B3", "B2"}, 8, 4, place(10), 60000);  // the other order
  put_file(scratch.at("in/notes.txt"), "x");
  const TileJob job = job_of({.from = scratch / "in"}, scratch / "out", 4);
  CHECK(job.scenes.classes == std::vector<std::string>{"field", "lake"});
  CHECK(job.scenes.reordered == 1);
  CHECK(job.scenes.other_files == 1);
  const TileResult result = make_tiles(job);
  CHECK((result.tiles == 8 && result.dropped == 0 && result.edge_pixels == 10 * 13 - 8 * 12));
  const TileShards shards(scratch / "out");
  CHECK(shards.band_names() == std::vector<std::string>{"B2", "B3"});
  CHECK(shards.bands()[0].nodata == 60000.0);
  CHECK(shards.shards()[0].labels == std::vector<int64_t>{0, 0, 0, 0, 0, 0, 1, 1});
  CHECK(shards.shards()[0].crs.find("UTM zone 33N") != std::string::npos);
  CHECK(shards.shards()[0].source.size() == 2);
  for (int64_t t = 0; t < 8; ++t)
    for (int64_t b = 0; b < 2; ++b) {
      const auto numbers = band_of(shards, t, b);
      const int64_t y0 = t < 6 ? t / 3 * 4 : (t - 6) * 4, x0 = t < 6 ? t % 3 * 4 : 0, in_file = t < 6 ? b : 1 - b;
      for (int64_t p = 0; p < 16; ++p)
        REQUIRE(numbers[size_t(p)] == images::test_number(in_file, y0 + p / 4, x0 + p % 4));
    }
  const auto transforms = weights::to_f64(shards.shards()[0].file.tensor("geotransform"));
  CHECK(std::vector<double>(transforms.begin() + 24, transforms.begin() + 30) ==
        std::vector<double>{500040, 10, 0, 5399960, 0, -10});
  // Metadata of tile 4: the fifth of that grid, whose middle lies 60 m east of the central meridian.
  const std::vector<double>& known = shards.shards()[0].numbers;
  REQUIRE(known.size() == 8 * kNumMetadata);
  CHECK(known[4 * kNumMetadata + kLongitude] == Approx(15 + 60 / (111320 * std::cos(0.851))).margin(1e-5));
  CHECK(known[4 * kNumMetadata + kResolution] == Approx(10).epsilon(0.01));
  CHECK(std::isnan(known[kMonth]));
}

TEST_CASE("tile maker: one file per band, coarser bands by repetition, finer ones by averages") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  images::write_u16(scratch.at("in/S_B02_10m.tif"), {""}, 12, 12, place(10));
  images::write_u16(scratch.at("in/S_B05_20m.tif"), {""}, 6, 6, place(20));
  images::write_u16(scratch.at("in/S_B09_60m.tif"), {""}, 2, 2, place(60));
  make_tiles(job_of({.from = scratch / "in"}, scratch / "fine", 4));
  const TileShards fine(scratch / "fine");
  CHECK(fine.band_names() == std::vector<std::string>{"B02", "B05", "B09"});
  REQUIRE(fine.size() == 9);
  for (int64_t t = 0; t < 9; ++t)
    for (int64_t b = 0; b < 3; ++b) {
      const int64_t factor = b == 0 ? 1 : b == 1 ? 2 : 6;
      const auto numbers = band_of(fine, t, b);
      for (int64_t p = 0; p < 16; ++p)
        REQUIRE(numbers[size_t(p)] ==
                images::test_number(0, (t / 3 * 4 + p / 4) / factor, (t % 3 * 4 + p % 4) / factor));
    }
  make_tiles(job_of({.from = scratch / "in", .bands = {"B09", "B2"}, .resolution = 30}, scratch / "coarse", 4));
  const TileShards coarse(scratch / "coarse");
  CHECK(coarse.band_names() == std::vector<std::string>{"B09", "B2"});
  REQUIRE(coarse.size() == 1);
  const auto numbers = band_of(coarse, 0, 1);
  for (int64_t p = 0; p < 16; ++p) {  // means of 3 x 3, which are those of the middle
    CAPTURE(p);
    CHECK(numbers[size_t(p)] == images::test_number(0, p / 4 * 3 + 1, p % 4 * 3 + 1));
  }
  CHECK(weights::to_f64(coarse.shards()[0].file.tensor("geotransform")) ==
        std::vector<double>{500000, 30, 0, 5400000, 0, -30});
}

TEST_CASE("tile maker: with --resolution pixels have that side, and what is over at the edge is cut off") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  images::write_u16(scratch.at("in/S_B02.tif"), {""}, 13, 13, place(10));
  make_tiles(job_of({.from = scratch / "in", .resolution = 30}, scratch / "out", 4));
  const TileShards shards(scratch / "out");
  REQUIRE(shards.size() == 1);
  const auto numbers = band_of(shards, 0, 0);
  for (int64_t p = 0; p < 16; ++p) CHECK(numbers[size_t(p)] == images::test_number(0, p / 4 * 3 + 1, p % 4 * 3 + 1));
  CHECK(weights::to_f64(shards.shards()[0].file.tensor("geotransform"))[1] == 30);
  refused(
      [&] { find_scenes({.from = scratch / "in", .resolution = 1000}); },
      "the scene is smaller than a pixel of --resolution; got 0.13 x 0.13 pixels; try a side in units of the CRS, in "
      "which pixels of this scene have 10 x 10");
}

TEST_CASE("tile maker: tiles with too many missing pixels are dropped and counted") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  std::vector<float> numbers(8 * 8, 3);
  numbers[0] = -9, numbers[1] = NAN;  // 2 of 16 in the first tile
  for (int y = 4; y < 8; ++y)
    for (int x = 4; x < 8; ++x) numbers[size_t(y * 8 + x)] = y % 2 ? NAN : -9;  // the last one has none
  std::filesystem::create_directories(scratch / "in");
  images::write_test_raster(scratch / "in/a.tif", images::PixelType::kF32, {"x"}, 8, 8, numbers, place(1), -9.0);
  const auto make = [&](const std::string& out, double share) {
    return make_tiles(job_of({.from = scratch / "in"}, scratch / out, 4, share));
  };
  const TileResult strict = make("strict", 0.1), loose = make("loose", 0.2), all = make("all", 1);
  CHECK((strict.tiles == 2 && strict.dropped == 2));
  CHECK((loose.tiles == 3 && loose.dropped == 1));
  CHECK((all.tiles == 3 && all.dropped == 1));
  CHECK(TileShards(scratch / "loose").bands()[0].nodata == -9.0);
  std::fill(numbers.begin(), numbers.end(), NAN);
  images::write_test_raster(scratch.at("nan/a.tif"), images::PixelType::kF32, {"x"}, 8, 8, numbers);
  refused([&] { make_tiles(job_of({.from = scratch / "nan"}, scratch / "none", 4, 1)); },
          "every tile was dropped for its missing pixels; got 4 tiles of 4 x 4 pixels");
  refused([&] { make_tiles(job_of({.from = scratch / "in"}, scratch / "large", 16)); },
          "a.tif] the scene is smaller than a tile; got 8 x 8 pixels, expected at least 16 x 16 pixels; try --tile 8");
  images::write_u16(scratch.at("sizes/a.tif"), {"x"}, 8, 4);
  images::write_u16(scratch.at("sizes/b.tif"), {"x"}, 6, 12);
  CHECK(make_tiles(job_of({.from = scratch / "sizes"}, scratch / "six", 6)).small_scenes == 1);
  refused([&] { make_tiles(job_of({.from = scratch / "sizes"}, scratch / "seven", 7)); },
          "b.tif] all scenes are smaller than a tile; this one is the largest; got 12 x 6 pixels");
}

TEST_CASE("tile maker: the mask of a source goes into the tensor `valid`") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  images::write_u16(scratch.at("parts/a.tif"), {"x", "y"}, 8, 8);
  std::vector<uint8_t> mask(64, 255);
  mask[0] = mask[9] = 0;
  images::write_test_raster(scratch / "parts/mask.tif", images::PixelType::kU8, {""}, 8, 8, mask);
  put_file(
      scratch.at("in/a.vrt"),
      images::vrt_of(
          "../parts/a.tif", 2, 8, 8, "",
          "<MaskBand><VRTRasterBand dataType=\"Byte\"><SimpleSource><SourceFilename relativeToVRT=\"1\">"
          "../parts/mask.tif</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand></MaskBand>"));
  make_tiles(job_of({.from = scratch / "in"}, scratch / "out", 4, 0.5));
  const TileShards shards(scratch / "out");
  REQUIRE(shards.shards()[0].has_valid);
  for (int p = 0; p < 16; ++p) CHECK(shards.shards()[0].valid(0)[p] == (p != 0 && p != 5));
  CHECK_FALSE(find_scenes({.from = scratch / "in", .nodata = 7}).scenes[0].bands[0].facts.nodata);
  CHECK(make_tiles(job_of({.from = scratch / "in"}, scratch / "none", 4, 0)).dropped == 1);
}

TEST_CASE("tile maker: the same bytes for any number of threads, and after an end in the middle") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  for (int i = 0; i < 7; ++i)
    images::write_u16(scratch.at("in/s" + std::to_string(i) + ".tif"), {"x"}, 20, 24, {}, {}, 10 * i);
  TileJob job = job_of({.from = scratch / "in"}, scratch / "one", 4);
  job.threads = 1, job.shard_tiles = 32;
  CHECK(make_tiles(job).tiles == 7 * 30);
  const auto want = shards_in(job.out);
  CHECK(want.size() == 7);
  job.threads = 4, job.out = scratch / "four";
  make_tiles(job);
  CHECK(shards_in(job.out) == want);
  struct Ended {};
  for (const int64_t end : {1, 3, 5, 6}) {
    job.out = scratch / ("cut" + std::to_string(end));
    CHECK_THROWS_AS(make_tiles(job, [&](const TileProgress& p) { p.pieces == end ? throw Ended() : void(); }), Ended);
    CHECK(shards_in(job.out).size() < want.size());
    if (end >= 3) CHECK_THAT(TileShards(job.out).describe_unfinished(), Catch::Contains("of 7 pieces of the scenes"));
    const std::string stale = job.out + "/.tiles_00000.safetensors.tmp_0123456789abcdef";
    std::ofstream(stale) << "half";
    const TileResult result = make_tiles(job);
    CHECK_FALSE(std::filesystem::exists(stale));
    CHECK(result.tiles == 210);
    CHECK(shards_in(job.out) == want);
    CHECK(TileShards(job.out).describe_unfinished() == "");
  }
  const TileResult again = make_tiles(job);
  CHECK((again.found == 210 && again.tiles == 210));
  job.max_nodata = 0.3;
  refused([&] { make_tiles(job); }, "made in another way: max_nodata");
  job.max_nodata = 0;
  job.scenes.scenes.front().bands.front().facts.offset += 1;
  refused([&] { make_tiles(job); }, "made in another way: offset");
  job.scenes.scenes.front().bands.front().facts.offset -= 1;
  job.scenes.scenes.pop_back();
  refused([&] { make_tiles(job); }, "made of other scenes");
}

TEST_CASE("tile maker: a shard that says wrongly where the next one begins is refused") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  images::write_u16(scratch.at("in/a.tif"), {"x"}, 8, 8);
  const TileJob job = job_of({.from = scratch / "in"}, scratch / "out", 4);
  make_tiles(job);
  std::filesystem::rename(scratch / "out/tiles_00000.safetensors", scratch / "whole.safetensors");
  const weights::SafetensorsFile whole(scratch / "whole.safetensors");
  const auto put = [&](const std::string& key, const std::string& value) {
    std::vector<weights::TensorToWrite> tensors;
    for (const weights::TensorView& t : whole.tensors()) tensors.push_back({t.name, t.dtype, t.shape, t.data});
    auto metadata = whole.metadata();
    metadata[key] = value;
    weights::write_safetensors(scratch / "out/tiles_00000.safetensors", tensors, metadata);
  };
  for (const char* next :
       {"[-1,0]", "[2,0]", "[1e300,0]", "[0,-1]", "[0.5,0]", "[18446744073709551615,0]", "[1]", "x"}) {
    CAPTURE(next);
    put("next", next);
    refused([&] { make_tiles(job); }, "does not say where the next one begins");
  }
  put("next", "[1,0]"), put("dropped", "-1");
  refused([&] { make_tiles(job); }, "does not say where the next one begins");
  put("dropped", "0");
  CHECK(make_tiles(job).found == 4);
}

TEST_CASE("tile maker: a process that is just ending is waited for") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  images::write_u16(scratch.at("in/a.tif"), {"x"}, 8, 8);
  const TileJob job = job_of({.from = scratch / "in"}, scratch / "out", 4);
  const std::string path = scratch.at("out/.lock");
  std::array<int, 2> ready{};
  REQUIRE(::pipe(ready.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {  // ends when the other one asks for the lock
    files::FileLock lock(path);
    const int events = ::inotify_init1(IN_CLOEXEC);
    const bool ok =
        lock.try_lock() == files::FileLock::Attempt::kLocked && ::inotify_add_watch(events, path.c_str(), IN_OPEN) >= 0;
    if (::write(ready[1], ok ? "y" : "n", 1) != 1) ::_exit(1);
    std::array<char, 4096> event{};
    ::_exit(::read(events, event.data(), event.size()) > 0 ? 0 : 1);
  }
  char locked = 'n';
  REQUIRE(::read(ready[0], &locked, 1) == 1);
  REQUIRE(locked == 'y');
  CHECK_NOTHROW(make_tiles(job));
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  for (const int end : ready) ::close(end);
}

TEST_CASE("tile maker: pieces go with the blocks of the finest band, on the grid") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  const auto put = [&](const std::string& band, int side, int metres) {  // blocks of at most 128
    const std::string raw = band + "_raw.tif";
    images::write_u16(scratch.at("in/" + raw), {""}, side, side);
    put_file(scratch / ("in/T_" + band + ".vrt"),
             images::vrt_of(raw, 1, side, side, "",
                            "<SRS>" + images::utm33() + "</SRS>" +
                                fmt::format("<GeoTransform>500000, {0}, 0, 5400000, 0, -{0}</GeoTransform>", metres)));
  };
  put("B8A", 32, 80), put("B02", 256, 10);
  const auto pieces = [&](double resolution) {
    int64_t of = 0;
    make_tiles(job_of({.from = scratch / "in", .bands = {"B8A", "B2"}, .resolution = resolution},
                      scratch / fmt::format("out{}", resolution), 16),
               [&](const TileProgress& progress) { of = progress.of; });
    return of;
  };
  CHECK(pieces(0) == 2);
  CHECK(pieces(20) == 2);
}

TEST_CASE("tile maker: pieces are of what is read, not of the coarser grid alone") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  images::write_u16(scratch.at("in/raw.tif"), {""}, 4, 4);
  const std::string place =
      "<SRS>" + images::utm33() + "</SRS><GeoTransform>500000, 1, 0, 5400000, 0, -1</GeoTransform>";
  put_file(scratch / "in/a.vrt", images::vrt_of("raw.tif", 1, 4096, 16384, "", place));
  int64_t of = 0;
  make_tiles(job_of({.from = scratch / "in", .resolution = 64}, scratch / "out", 64),
             [&](const TileProgress& progress) { of = progress.of; });
  CHECK(of == 4);  // of 64 x 64 pixels of the grid, for which 32 MiB are read
  const auto metadata = weights::SafetensorsFile(scratch / "out/tiles_00000.safetensors").metadata();
  CHECK(metadata.at("pieces") == "4");  // by which an unfinished folder is known
}

TEST_CASE("tile maker: work goes on only with the scenes it began with") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  const auto put = [&](const std::string& in_band) {
    put_file(scratch / "in/a.vrt", images::vrt_of("raw.tif", 1, 4, 4, in_band));
  };
  const auto make = [&] { return make_tiles(job_of({.from = scratch / "in"}, scratch / "out", 4)).found; };
  images::write_u16(scratch.at("in/raw.tif"), {""}, 4, 4);
  put("<Offset>1</Offset>");
  const auto time = std::filesystem::last_write_time(scratch / "in/a.vrt");
  CHECK(make() == 0);
  CHECK(make() == 1);
  put("<Offset>2</Offset>");  // as many bytes
  std::filesystem::last_write_time(scratch / "in/a.vrt", time);
  refused(make, "made in another way: offset");
  put("<Offset>1</Offset>");
  std::filesystem::last_write_time(scratch / "in/a.vrt", time);
  CHECK(make() == 1);
  std::filesystem::last_write_time(scratch / "in/a.vrt", time + std::chrono::seconds(1));
  refused(make, "made of other scenes");
  std::filesystem::last_write_time(scratch / "in/a.vrt", time);
  CHECK(make() == 1);
  put_file(scratch / "in/a.vrt.aux.xml", "<PAMDataset/>");  // gdalinfo -stats
  CHECK(make() == 1);
  const auto raw = std::filesystem::last_write_time(scratch / "in/raw.tif");
  std::filesystem::last_write_time(scratch / "in/raw.tif", raw + std::chrono::seconds(1));
  refused(make, "made of other scenes");
}

TEST_CASE("scenes: the words of file names that are bands") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  using Names = std::vector<std::string>;
  const auto check = [&](const std::string& folder, const std::string& begin, const Names& words, const Names& bands) {
    CAPTURE(folder);
    for (const std::string& word : words) images::write_u16(scratch.at(folder + "/" + begin + word), {""}, 4, 4);
    const SceneList list = find_scenes({.from = scratch / folder});
    REQUIRE(list.scenes.size() == 1);
    Names found;
    for (const SceneBand& band : list.scenes[0].bands) found.push_back(band.facts.name);
    CHECK(found == bands);
  };
  check("sea", "Red_Sea_20200601_", {"B02.tif", "B03.tif", "B8A.tif"}, {"B02", "B03", "B8A"});
  check("nile", "", {"B2_blue_nile.tif", "B3_blue_nile.tif"}, {"B2", "B3"});
  check("site", "site_B1_", {"blue.tif", "green.tif", "red.tif"}, {"blue", "green", "red"});
  check("alone", "Red_", {"B2_pan.tif"}, {"B2"});
  check("landsat", "LC08_193027_sr_", {"band2.tif", "band10.tif"}, {"B10", "B2"});
  check("radar", "S1A_20200601_", {"VH.tif", "VV.tif"}, {"VH", "VV"});
  check("stac", "S2_20200601_", {"blue.tif", "nir08.tif", "swir16.tif"}, {"blue", "nir08", "swir16"});
}

TEST_CASE("scenes: what does not go together is refused by name") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  const auto with = [&](const std::string& folder, const std::vector<std::string>& second, const SceneRequest& request,
                        const std::string& text) {
    images::write_u16(scratch.at(folder + "/a.tif"), {"B2", "B3"}, 4, 4);
    images::write_u16(scratch.at(folder + "/b.tif"), second, 4, 4);
    SceneRequest full = request;
    full.from = scratch / folder;
    refused([&] { find_scenes(full); }, text);
  };
  with("lacks", {"B2"}, {}, "b.tif] the scene lacks band B3");
  with("more", {"B2", "B3", "B4"}, {}, "B4");
  with("twice", {"B2", "b02"}, {}, "is there twice");
  with("unknown", {"B2", "B3"}, {.from = "", .bands = {"B2", "B9"}}, "lacks band B9");
  with("wanted", {"B2", "B3"}, {.from = "", .bands = {"B2", "B2"}}, "two bands of one name");
  with("metres", {"B2", "B3"}, {.from = "", .resolution = 10}, "needs scenes with a CRS");
  for (const double odd : {double(NAN), double(INFINITY), 0.0}) {
    const GeoTransform transform = {500000, odd, 0, 5400000, 0, -10};
    const std::string in = fmt::format("odd{}", odd);
    images::write_u16(scratch.at(in + "/raw.tif"), {"x"}, 4, 4);
    put_file(scratch.at(in + "/a.vrt"),
             images::vrt_of("raw.tif", 1, 4, 4, "",
                            "<SRS>" + images::utm33() + "</SRS>" +
                                fmt::format("<GeoTransform>{}</GeoTransform>", fmt::join(transform, ", "))));
    refused([&] { find_scenes({.from = scratch / in, .resolution = 10}); }, "a.vrt] --resolution");
  }
  images::write_test_raster(scratch.at("types/a.tif"), images::PixelType::kU8, {"x"}, 4, 4, std::vector<uint8_t>(16));
  images::write_u16(scratch.at("types/b.tif"), {"x"}, 4, 4);
  refused([&] { find_scenes({.from = scratch / "types"}); }, "another type");
  images::write_test_raster(scratch.at("f64/a.tif"), images::PixelType::kF64, {"x"}, 4, 4, std::vector<double>(16));
  refused([&] { find_scenes({.from = scratch / "f64"}); }, "tiles cannot have");
  images::write_u16(scratch.at("doubled/S_B02.tif"), {""}, 4, 4, place(10));
  images::write_u16(scratch.at("doubled/S_B2.tif"), {""}, 4, 4, place(10));
  refused([&] { find_scenes({.from = scratch / "doubled"}); }, "band B2 is there twice");
  images::write_u16(scratch.at("ground/S_B02.tif"), {""}, 4, 4, place(10));
  images::write_u16(scratch.at("ground/S_B03.tif"), {""}, 4, 4, place(20));
  refused([&] { find_scenes({.from = scratch / "ground"}); }, "covers other ground");
  put_file(scratch.at("cut/a.tif"), get_file(scratch / "types/b.tif").substr(0, 40));
  refused([&] { find_scenes({.from = scratch / "cut"}); }, "a.tif]");
  refused([&] { find_scenes({.from = scratch / "none"}); }, "none");
  refused([&] { find_scenes({.from = scratch.path()}); }, "");
}

TEST_CASE("scenes: a truncated file ends the work, whole shards stay") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  for (const char* name : {"in/a.tif", "in/b.tif"}) images::write_u16(scratch.at(name), {"x"}, 64, 64);
  TileJob job = job_of({.from = scratch / "in"}, scratch / "out", 16);
  job.shard_tiles = 16, job.threads = 1;
  const std::string whole = get_file(scratch / "in/b.tif");
  put_file(scratch / "in/b.tif", whole.substr(0, 3000));
  refused([&] { make_tiles(job); }, "b.tif]");
  put_file(scratch / "in/b.tif", whole);
  CHECK(make_tiles(job).tiles == 32);
}

TEST_CASE("scenes: names for bands that have none, VRTs in place of their parts, labels on request") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  images::write_u16(scratch.at("in/one/a.tif"), {"", ""}, 4, 4);
  put_file(scratch / "in/one/a.vrt", images::vrt_of("a.tif", 2, 4, 4));
  const SceneList named = find_scenes({.from = scratch / "in", .names = {"Red", "NIR"}});
  REQUIRE(named.scenes.size() == 1);
  CHECK(named.scenes[0].name.ends_with("a.vrt"));
  CHECK(named.scenes[0].bands[1].facts.name == "NIR");
  CHECK(named.scenes[0].label == 0);
  const SceneList plain = find_scenes({.from = scratch / "in", .labels = false});
  CHECK(plain.scenes[0].bands[1].facts.name == "band2");
  CHECK(plain.classes.empty());
  refused([&] { find_scenes({.from = scratch / "in", .names = {"Red"}}); }, "more bands than --names");
  refused([&] { find_scenes({.from = scratch / "in", .names = {"Blue", "Red", "NIR"}}); }, "fewer bands than --names");
  // A mask beside the scenes is left out before its bands are counted.
  images::write_u16(scratch.at("beside/scene.tif"), {"", "", "", ""}, 4, 4);
  images::write_u16(scratch.at("beside/mask.tif"), {""}, 4, 4);
  const SceneRequest two{.from = scratch / "beside", .bands = {"red", "nir"}, .names = {"blue", "green", "red", "nir"}};
  const SceneList beside = find_scenes(two);
  REQUIRE(beside.scenes.size() == 1);
  CHECK(beside.scenes[0].bands[1].index == 3);
  CHECK(beside.left_out.size() == 1);
}

TEST_CASE("scenes: a fourth band that files call alpha is data where names or bands count it") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  images::write_u16(scratch.at("raw/a.tif"), {"", "", "", ""}, 8, 8);
  std::string vrt = images::vrt_of("../raw/a.tif", 4, 8, 8);
  vrt.insert(vrt.rfind("<SimpleSource>"), "<ColorInterp>Alpha</ColorInterp>");
  put_file(scratch.at("in/a.vrt"), vrt);
  const SceneList plain = find_scenes({.from = scratch / "in"});
  CHECK((plain.scenes[0].bands.size() == 3 && plain.scenes[0].bands[0].has_mask));
  refused(
      [&] {
        find_scenes({.from = scratch / "in", .names = {"a", "b", "c", "d", "e"}});
      },
      "got 3 band(s) and alpha, expected 5 names");
  const SceneRequest named{.from = scratch / "in", .names = {"red", "green", "blue", "nir"}};
  make_tiles(job_of(named, scratch / "out", 4));
  const TileShards shards(scratch / "out");
  CHECK(shards.band_names() == named.names);
  CHECK((shards.size() == 4 && !shards.shards()[0].has_valid));
  CHECK(band_of(shards, 0, 3)[5] == images::test_number(3, 1, 1));
  const SceneList asked = find_scenes({.from = scratch / "in", .bands = {"band4"}});
  REQUIRE(asked.scenes.size() == 1);
  CHECK((asked.scenes[0].bands[0].index == 3 && !asked.scenes[0].bands[0].has_mask));
}

TEST_CASE("scenes: a raster beside the folders of classes is left out, the labels stay") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  for (const char* name : {"in/a_loose.tif", "in/field/a.tif", "in/lake/b.tif"})
    images::write_u16(scratch.at(name), {"x", "y"}, 4, 4);
  const SceneList list = find_scenes({.from = scratch / "in"});
  CHECK(list.classes == std::vector<std::string>{"field", "lake"});
  REQUIRE(list.scenes.size() == 2);
  CHECK((list.scenes[0].label == 0 && list.scenes[1].label == 1));
  CHECK(find_scenes({.from = scratch / "in", .labels = false}).scenes.size() == 3);
}

TEST_CASE("scenes: products with previews and masks, a folder each, are no classes") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  for (const std::string product : {"in/A.SAFE/", "in/B.SAFE/"}) {
    for (const char* band : {"B02", "B8A"})
      images::write_u16(scratch.at(product + "IMG/T33_" + band + ".tif"), {""}, 4, 4);
    images::write_test_raster(scratch.at(product + "QI_DATA/MSK_B02.tif"), images::PixelType::kU8, {""}, 4, 4,
                              std::vector<uint8_t>(16));
  }
  const SceneList plain = find_scenes({.from = scratch / "in"});
  CHECK((plain.scenes.size() == 2 && plain.classes.empty()));
  images::write_test_raster(scratch.at("in/A.SAFE/IMG/T33_TCI.tif"), images::PixelType::kU8, {"", "", ""}, 4, 4,
                            std::vector<uint8_t>(48));
  const SceneList list = find_scenes({.from = scratch / "in", .bands = {"B8A", "B2"}});
  REQUIRE(list.scenes.size() == 2);
  CHECK((list.left_out.size() == 1 && list.classes.empty()));
  CHECK(list.scenes[1].bands[0].facts.name == "B8A");
  refused([&] { find_scenes({.from = scratch / "in", .bands = {"B11"}}); }, "no raster has any of the bands");
}

TEST_CASE("scenes: a folder that a link leads to again is read once") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  images::write_u16(scratch.at("in/2024/a.tif"), {"x"}, 4, 4);
  std::filesystem::create_directory_symlink(".", scratch / "in/latest");
  std::filesystem::create_directory_symlink("2024", scratch / "in/this_year");
  CHECK(find_scenes({.from = scratch / "in"}).scenes.size() == 1);
}

// As a product of level 2A: folders by resolution, bands in several of them, rasters that are no bands.
TEST_CASE("scenes: a band at several resolutions comes from its finest file, or the one for --resolution") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  for (const std::string product : {"in/A.SAFE/", "in/B.SAFE/"}) {
    const auto write = [&](const std::string& folder, const std::string& name, double pixel) {
      const auto side = int64_t(120 / pixel);
      images::write_u16(scratch.at(product + "IMG_DATA/" + folder + "/T33_2020_" + name + ".tif"), {""}, side, side,
                        place(pixel), {}, int(pixel));
    };
    for (const char* name : {"AOT_10m", "B02_10m", "B04_10m"}) write("R10m", name, 10);
    for (const char* name : {"B01_20m", "B02_20m", "B04_20m", "B8A_20m", "SCL_20m"}) write("R20m", name, 20);
    for (const char* name : {"B01_60m", "B02_60m", "B04_60m", "B8A_60m", "B09_60m"}) write("R60m", name, 60);
  }
  const std::vector<std::string> bands = {"B1", "B2", "B4", "B8A", "B9"};
  const auto folders = [&](double resolution) {
    const SceneList list = find_scenes({.from = scratch / "in", .bands = bands, .resolution = resolution});
    REQUIRE(list.scenes.size() == 2);
    CHECK(list.classes.empty());
    CHECK(list.left_out.size() == 4);
    CHECK(list.other_resolutions.size() == 12);
    CHECK(list.scenes[1].name.ends_with("B.SAFE/IMG_DATA/T33_2020"));
    std::string all;
    for (const SceneBand& band : list.scenes[1].bands)
      all += std::filesystem::path(band.file).parent_path().filename().string() + " ";
    return all;
  };
  CHECK(folders(0) == "R20m R10m R10m R20m R60m ");
  CHECK(folders(5) == "R20m R10m R10m R20m R60m ");
  CHECK(folders(15) == "R20m R10m R10m R20m R60m ");
  CHECK(folders(20) == "R20m R20m R20m R20m R60m ");
  CHECK(folders(60) == "R60m R60m R60m R60m R60m ");
  make_tiles(job_of({.from = scratch / "in", .bands = bands, .resolution = 20}, scratch / "out", 6));
  const TileShards shards(scratch / "out");
  REQUIRE(shards.size() == 2);
  for (int64_t p = 0; p < 36; ++p) {
    REQUIRE(band_of(shards, 1, 1)[size_t(p)] == images::test_number(0, p / 6, p % 6) + 20);
    REQUIRE(band_of(shards, 1, 4)[size_t(p)] == images::test_number(0, p / 6 / 3, p % 6 / 3) + 60);
  }
  refused([&] { find_scenes({.from = scratch / "in"}); }, "--bands with those that are wanted");
}

TEST_CASE("scenes: sub-folders are classes, also with the files of one scene each, but for products") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  const auto write = [&](const std::string& stem) {
    for (const char* band : {"B02", "B8A"}) images::write_u16(scratch.at(stem + band + ".tif"), {""}, 4, 4);
  };
  using Names = std::vector<std::string>;
  write("named/field/T33_"), write("named/lake/T32_");
  const SceneList named = find_scenes({.from = scratch / "named"});
  CHECK(named.classes == Names{"field", "lake"});
  REQUIRE(named.scenes.size() == 2);
  CHECK((named.scenes[0].label == 0 && named.scenes[1].label == 1));
  write("bands/field/"), write("bands/lake/");
  CHECK(find_scenes({.from = scratch / "bands"}).classes == Names{"field", "lake"});
  CHECK(find_scenes({.from = scratch / "bands", .labels = false}).classes.empty());
  // Collection 2 level 2, also with a thermal band beside those of reflectance, and with fewer products than two.
  const std::string l2sp = "/LC08_L2SP_190024_20200601_20200823_02_T1";
  write("level2" + l2sp + l2sp + "_SR_"), write("level2/LC09_L2SP_190025/LC09_L2SP_190025_SR_");
  images::write_u16(scratch.at("level2" + l2sp + l2sp + "_ST_B10.tif"), {""}, 4, 4);
  const SceneList level2 = find_scenes({.from = scratch / "level2", .bands = {"B2"}});
  CHECK((level2.scenes.size() == 2 && level2.classes.empty()));
  write("sr/one/one_SR_"), write("sr/two/two_SR_");
  CHECK(find_scenes({.from = scratch / "sr"}).classes.empty());
  write("begins/one/ones_"), write("begins/two/two_");
  CHECK(find_scenes({.from = scratch / "begins"}).classes == Names{"one", "two"});
  write("landsat/LC08_L1TP_190024/LC08_L1TP_190024_"), write("landsat/LC08_L1TP_190025/LC08_L1TP_190025_");
  CHECK(find_scenes({.from = scratch / "landsat"}).classes.empty());
  const std::string image = "/GRANULE/L1C_T33/IMG_DATA/T33_2020_";
  write("safe/A.SAFE" + image), write("safe/B.SAFE" + image);
  CHECK(find_scenes({.from = scratch / "safe"}).classes.empty());
  write("unpacked/S2A_MSIL2A_2020" + image), write("unpacked/S2B_MSIL2A_2021" + image);
  CHECK(find_scenes({.from = scratch / "unpacked"}).classes.empty());
  CHECK(find_scenes({.from = scratch / "safe/A.SAFE"}).classes.empty());
  CHECK(find_scenes({.from = scratch / "safe/A.SAFE/"}).classes.empty());
  write("sorted/field/A.SAFE" + image), write("sorted/lake/B.SAFE" + image);
  const SceneList sorted = find_scenes({.from = scratch / "sorted"});
  CHECK(sorted.classes == Names{"field", "lake"});
  CHECK(sorted.scenes.size() == 2);
}

TEST_CASE("tile maker: missing pixels of files that state no number for them are declared") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  std::vector<uint16_t> numbers(8 * 8, 7);
  for (size_t p = 0; p < 16; ++p) numbers[p / 4 * 8 + p % 4] = p < 2 ? 0 : 7;  // 2 of 16 in the first tile
  const auto write = [&](const std::string& name, std::optional<double> nodata) {
    images::write_test_raster(scratch.at(name), images::PixelType::kU16, {"x"}, 8, 8, numbers, place(1), nodata);
  };
  const auto make = [&](const std::string& in, std::optional<double> nodata) {
    const std::string out = in + (nodata ? "_declared" : "_plain");
    const TileResult result = make_tiles(job_of({.from = scratch / in, .nodata = nodata}, scratch / out, 4, 0.1));
    CHECK(TileShards(scratch / out).bands()[0].nodata == (in == "stated" ? 7.0 : nodata));
    return result.tiles;
  };
  write("silent/a.tif", {});
  CHECK(make("silent", {}) == 4);
  CHECK(make("silent", 0.0) == 3);
  std::fill(numbers.begin(), numbers.end(), uint16_t(1));
  write("stated/a.tif", 7);
  CHECK(make("stated", 1.0) == 4);  // what a file states is kept
  std::vector<float> reals(8 * 8, 7);
  for (size_t p = 0; p < 16; ++p) reals[p / 4 * 8 + p % 4] = p < 2 ? -9999.9f : 7;
  images::write_test_raster(scratch.at("reals/a.tif"), images::PixelType::kF32, {"x"}, 8, 8, reals, place(1));
  const SceneRequest request{.from = scratch / "reals", .nodata = -9999.9};  // which no f32 is
  CHECK(make_tiles(job_of(request, scratch / "reals_declared", 4, 0.1)).tiles == 3);
  for (const double number : {-1.0, 65536.0, 0.5})
    refused([&] { find_scenes({.from = scratch / "silent", .nodata = number}); },
            "a.tif] --nodata is no number that this scene can hold");
}

TEST_CASE("tile maker: the scale of numbers of files that state none is declared") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  images::RasterToWrite raster{.width = 4, .height = 4, .type = images::PixelType::kU16};
  raster.bands = {{.name = "x", .scale = 2}, {.name = "y"}};
  const std::vector<uint16_t> both(32, 7);
  raster.pixels = both.data();
  images::write_geotiff(scratch.at("in/a.tif"), raster);
  make_tiles(job_of({.from = scratch / "in", .scale = 1e-4, .offset = -0.1}, scratch / "out", 4));
  const TileShards shards(scratch / "out");
  CHECK((shards.bands()[0].scale == 2 && shards.bands()[0].offset == 0));  // what a file states is kept
  CHECK((shards.bands()[1].scale == 1e-4 && shards.bands()[1].offset == -0.1));
}

TEST_CASE("inspect: rows of more numbers than are read at a time are cut") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  const int64_t width = 1'000'003;
  std::string vrt = fmt::format("<VRTDataset rasterXSize=\"{}\" rasterYSize=\"2\">", width);
  for (int b = 1; b <= 20; ++b) vrt += fmt::format("<VRTRasterBand dataType=\"UInt16\" band=\"{}\"/>", b);
  put_file(scratch.at("in/a.vrt"), vrt + "</VRTDataset>");
  const auto file = files::parse_json(inspect_path(scratch / "in").json)["files"][0];
  for (int b = 0; b < 20; ++b) REQUIRE(file["valid"][size_t(b)] == 2 * width);
  CHECK(file["max"][19] == 0);
}

TEST_CASE("inspect: products get a line of ditdata make that leaves out previews and masks") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  const auto write = [&](const std::string& path, size_t bands = 1) {
    images::write_u16(scratch.at(path), std::vector<std::string>(bands, ""), 40, 40);
  };
  const auto line_of = [&](const std::string& folder) {
    const std::string table = inspect_path(scratch / folder).table, begin = "--from " + scratch / folder;
    const size_t at = table.find(begin);
    REQUIRE(at != std::string::npos);
    return table.substr(at + begin.size());
  };
  // Surface temperature has a name of its own: another scene, whose band the others lack.
  for (const char* band : {"SR_B2", "SR_B3", "SR_B7", "ST_B10", "QA_PIXEL"})
    write(fmt::format("landsat/LC08_L2SP_1/LC08_L2SP_1_{}.TIF", band));
  write("landsat/LC08_L2SP_2/LC08_L2SP_2_SR_B2.TIF"), write("landsat/LC08_L2SP_2/LC08_L2SP_2_SR_B7.TIF");
  CHECK(line_of("landsat") == " --bands B2,B7 --tile 32 --out TILES\n");
  const SceneList list = find_scenes({.from = scratch / "landsat", .bands = {"B2", "B7"}});
  CHECK((list.scenes.size() == 2 && list.left_out.size() == 2));

  const auto write_sentinel = [&](const std::string& folder, const std::string& baseline) {
    const std::string product = folder + "/S2A_MSIL2A_20180601T1_" + baseline + "_R022_T33UUP.SAFE/IMG_DATA/T33UUP_";
    for (const char* band : {"B8A", "B11", "B02"}) write(product + band + ".tif");
    write(product + "TCI.tif", 3), write(product + "AOT.tif");
  };
  const std::string begin = " --bands B2,B8A,B11 --nodata 0 --scale 1e-4 --offset ";
  write_sentinel("old", "N0208");
  CHECK(line_of("old") == begin + "0 --tile 32 --out TILES\n");
  write_sentinel("recent", "N0511");
  CHECK(line_of("recent") == begin + "-0.1 --tile 32 --out TILES\n");
  write_sentinel("both", "N0208"), write_sentinel("both", "N0400");
  CHECK(line_of("both") ==
        begin + "-0.1 --tile 32 --out TILES\n" +
            "Sentinel-2 products from before baseline 04.00 have --offset 0: make tiles of them alone\n");
  write("named/a_NIR.tif"), write("named/a_Blue.tif"), write("whole/a.tif", 2);
  CHECK(line_of("named") == " --bands Blue,NIR --tile 32 --out TILES\n");
  CHECK(line_of("whole") == " --tile 32 --out TILES\n");
}

TEST_CASE("inspect: what ditdata make would refuse has no line of it, and classes are those that it finds") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const ScratchFolder scratch;
  const auto table_of = [&](const std::string& folder) {
    const std::string table = inspect_path(scratch / folder).table;
    CHECK(table.find("ditdata make --from") == std::string::npos);
    return table.substr(table.rfind('\n', table.size() - 2) + 1);
  };
  images::write_test_raster(scratch.at("f64/a.tif"), images::PixelType::kF64, {"x"}, 4, 4, std::vector<double>(16));
  CHECK(table_of("f64").starts_with("ditdata make would refuse it: [" + scratch / "f64/a.tif" + "] tiles cannot have"));
  images::write_test_raster(scratch.at("types/a.tif"), images::PixelType::kU8, {"x"}, 4, 4, std::vector<uint8_t>(16));
  images::write_u16(scratch.at("types/b.tif"), {"x"}, 4, 4);
  CHECK(table_of("types").find("b.tif] another type than ") != std::string::npos);
  const auto classes = [&](const std::string& folder) {
    return files::parse_json(inspect_path(scratch / folder).json)["classes"];
  };
  for (const char* name :
       {"products/one/one_B2.tif", "products/two/two_B2.tif", "classes/one/a.tif", "classes/two/b.tif"})
    images::write_u16(scratch.at(name), {"B2"}, 4, 4);
  CHECK(classes("products").empty());
  CHECK(classes("classes") == nlohmann::json{"one", "two"});
}

TEST_CASE("inspect: rasters, tiles and images") {
  const ScratchFolder scratch;
  scratch.write_grey("images/a/x.png", 100);
  const auto images = files::parse_json(inspect_path(scratch / "images").json);
  CHECK(images["kind"] == "images");
  CHECK(images["classes"] == nlohmann::json{"a"});
  CHECK(images["files"][0]["shape"] == nlohmann::json{3, 8, 8});
  CHECK(images["files"][0]["mean"] == nlohmann::json{100, 100, 100});
  TestTiles{.labels = {0, 1, 0, 1}}.write(scratch.at("tiles/a.safetensors"));
  const Inspection tiles = inspect_path(scratch / "tiles");
  CHECK(files::parse_json(tiles.json)["files"][0]["tiles"] == 4);
  CHECK(tiles.table.find("data.kind=tiles") != std::string::npos);
  CHECK(tiles.table.find("model.num_classes=2") != std::string::npos);

  TestTiles{.n = 1, .side = 2, .bands = {"B4"}}.write<float>(scratch.at("reals/a.safetensors"), {1, 2, 3, 4}, "F32");
  CHECK(inspect_path(scratch / "reals").table.find("data.kind=tiles") != std::string::npos);

  const std::vector<double> values(3 * 4 * 2 * 2, 0.5);
  const std::vector<int64_t> labels = {0, 4, 2};
  weights::write_safetensors(
      scratch.at("latents/a.safetensors"),
      {{"latents", "F32", {3, 4, 2, 2}, std::vector<float>(48, 0.5f).data()}, {"labels", "I64", {3}, labels.data()}});
  CHECK(inspect_path(scratch / "latents").table.find("model.num_classes=5") != std::string::npos);
  // As ditdata encode writes them: not scaled yet, mean and log-variance.
  const std::vector<float> halves(48, 0.5f);
  weights::write_safetensors(scratch.at("moments/a.safetensors"),
                             {{"mean", "F32", {3, 4, 2, 2}, halves.data()},
                              {"logvar", "F32", {3, 4, 2, 2}, halves.data()},
                              {"mean_flip", "F32", {3, 4, 2, 2}, halves.data()},
                              {"logvar_flip", "F32", {3, 4, 2, 2}, halves.data()},
                              {"labels", "I64", {3}, labels.data()}},
                             {{"scale_factor", "0.18215"}});
  const Inspection moments = inspect_path(scratch / "moments");
  CHECK(moments.table.find("refuse") == std::string::npos);
  CHECK(moments.table.find("model.num_classes=5 data.latent_scale=0.18215\n") != std::string::npos);
  CHECK(files::parse_json(moments.json)["files"][0]["flipped"] == true);
  CHECK(moments.table.find("as they are trained on: 0\n") != std::string::npos);
  std::vector<float> large(48);
  for (size_t i = 0; i < large.size(); ++i) large[i] = i % 2 == 0 ? 5.5f : -5.5f;
  weights::write_safetensors(scratch.at("large latents/a.safetensors"),
                             {{"latents", "F32", {3, 4, 2, 2}, large.data()}});
  const Inspection unscaled = inspect_path(scratch / "large latents");
  CHECK(unscaled.table.find("5.5 5.5 5.5 5.5; as they are trained on: 5.5, far from 1") != std::string::npos);
  CHECK(unscaled.table.find("data.path='" + scratch / "large latents" + "' ") != std::string::npos);
  weights::write_safetensors(scratch.at("wide/a.safetensors"), {{"latents", "F64", {3, 4, 2, 2}, values.data()}});
  const Inspection wide = inspect_path(scratch / "wide");
  CHECK(files::parse_json(wide.json)["files"][0]["dtype"] == "float64");
  CHECK(wide.table.find("ditrain would refuse it: ") != std::string::npos);
  CHECK(wide.damaged == 0);

  put_file(scratch.at("images/a/broken.png"), "no picture");
  const Inspection some = inspect_path(scratch / "images");
  CHECK(some.damaged == 1);
  CHECK(some.table.find("damaged: ") != std::string::npos);
  CHECK(files::parse_json(some.json)["files"].size() == 1);
  CHECK(files::parse_json(some.json)["damaged"][0]["problem"].get<std::string>().find("broken.png") !=
        std::string::npos);
  refused([&] { inspect_path(scratch / "none"); }, "none");
  if (!images::has_gdal()) SKIP("no GDAL");
  put_file(scratch.at("packed/S2A.zip"), "PK");
  refused([&] { inspect_path(scratch / "packed"); }, "there is no data; got 1 other files, expected rasters");
  refused([&] { inspect_path(scratch / "packed"); }, "try unpacking the archives there first");
  refused([&] { find_scenes({.from = scratch / "packed"}); }, "try unpacking the archives there first");
  images::write_u16(scratch.at("per band/T33_B02_10m.tif"), {""}, 20, 30);
  const Inspection per_band = inspect_path(scratch / "per band");
  CHECK(files::parse_json(per_band.json)["files"][0]["bands"] == nlohmann::json{"B02"});
  CHECK(per_band.table.find("ditdata make --from '" + scratch / "per band" + "' --bands B2 --tile 16 --out TILES\n") !=
        std::string::npos);
  refused([&] { find_scenes({.from = scratch / "per band", .bands = {"B4"}}); },
          "no raster has any of the bands; got 1 raster(s) with B02, expected B4");
  images::write_u16(scratch.at("in/a.tif"), {"x", "y"}, 4, 6, place(10), 9);
  const auto found = files::parse_json(inspect_path(scratch / "in").json);
  const auto& file = found["files"][0];
  CHECK(file["dtype"] == "uint16");
  CHECK(file["shape"] == nlohmann::json{2, 4, 6});
  CHECK(file["nodata"] == 9);
  CHECK(file["bands"] == nlohmann::json{"x", "y"});
  CHECK(file["epsg"] == 32633);
  int valid = 0;
  for (int y = 0; y < 4; ++y)
    for (int x = 0; x < 6; ++x) valid += images::test_number(0, y, x) != 9;
  CHECK(file["valid"][0] == valid);
  CHECK(file["max"][1] == images::test_number(1, 3, 5));
}
