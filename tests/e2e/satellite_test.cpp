// From scenes to georeferenced samples: ditdata make, ditrain on the tiles, ditsample as GeoTIFF, ditfid of the bands.
#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <fstream>
#include <numeric>

#include "../images/raster_fixture.hpp"
#include "ditrain/base/metadata.hpp"
#include "ditrain/files/json.hpp"
#include "ditrain/images/image.hpp"
#include "ditrain/images/raster.hpp"
#include "ditrain/weights/safetensors.hpp"
#include "inputs.hpp"
#include "run.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using namespace ditrain::e2e;
using Catch::Contains;

namespace {

Args make(const std::string& scenes, const std::string& out, const Args& more = {}) {
  return program("ditdata", Args{"make", "--from", scenes, "--tile", "16", "--out", out} + more);
}

// A model of four of the bands.
std::vector<std::string> settings(const std::string& tiles) {
  return {"data.kind=tiles",    "data.path=" + tiles,  "data.bands=[B8, B4, B3, B2]",
          "data.augment=turns", "model.in_channels=4", "model.input_size=16",
          "model.patch_size=8", "model.num_classes=2", "train.global_batch=4"};
}

}  // namespace

TEST_CASE("satellite: scenes become tiles, a model, and samples with digital numbers, names and a place") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  write_scenes(scratch / "scenes");
  const Result made = require_ok(make(scratch / "scenes", scratch / "tiles"));
  CHECK_THAT(made.out, Contains("64 tiles of 16 x 16") && Contains("2 classes from sub-folders: field, lake"));
  REQUIRE_EXIT(run(program("ditdata", {"stats", scratch / "tiles"})), 0);
  const Result inspected =
      require_ok(program("ditdata", {"inspect", scratch / "tiles", "--json", scratch / "tiles.json"}));
  CHECK_THAT(inspected.out, Contains("model.in_channels=13") && Contains("model.num_classes=2"));

  const Args quantities = sets({"data.number_scale=[1e-4, 2e-4, 1e-4, 1e-4]", "data.number_offset=[-0.1, 0, 0, 0]"});
  const Result trained = require_ok(tiny_ditrain(scratch / "run", 3, sets(settings(scratch / "tiles")) + quantities));
  CHECK_THAT(trained.out, Contains("settled: data.number_type: u16") && Contains("settled: data.scale_low: ["));
  CHECK_THAT(read_file(scratch / "run/checkpoints/latest/state.json"),
             Contains("bands: [B8, B4, B3, B2]") && Contains("number_type: u16") && !Contains("scale_low: auto"));
  // Distances compare in the values that the model learns: a reference of tiles is scaled as the data are.
  double distances[2];
  for (const bool named : {false, true}) {
    const std::string out = scratch / (named ? "named" : "own");
    auto all = settings(scratch / "tiles");
    all.insert(all.end(), {"eval.fid_every_steps=2", "eval.fid_samples=8", "sample.steps=2",
                           "eval.reference=" + (named ? scratch / "tiles" : "")});
    REQUIRE_EXIT(run(tiny_ditrain(out, 2, sets(all))), 0);
    distances[named] = read_metrics(out).at(1).at("fid_pixels");
  }
  CHECK(distances[0] == distances[1]);
  CHECK(distances[0] > 0);
  fs::remove(scratch / "tiles/stats.json");  // samples need none
  const auto draw = [&](const std::string& out, const Args& more) {
    return program("ditsample",
                   Args{"--checkpoint", scratch / "run", "--num", "3", "--steps", "3", "--format", "geotiff", "--like",
                        scratch / "scenes/field/a.tif", "--grid", scratch / out + ".png", "--out", scratch / out} +
                       more);
  };
  const Result drawn = require_ok(draw("one", {}));
  CHECK_THAT(drawn.out, Contains("red, green, blue are B4") && Contains("false colour of B8"));  // of 13 bands
  REQUIRE_EXIT(run(mpirun(2, draw("two", {"--threads", "1"}))), 0);
  CHECK(data_files(scratch / "one") == data_files(scratch / "two"));
  const images::ImageU8 grid = images::read_image(scratch / "one.png");
  CHECK(grid.width == 2 + 2 * (16 + 1 + 16 + 2));  // two columns

  images::Raster sample(scratch / "one/000002.tif"), scene(scratch / "scenes/field/a.tif");
  CHECK(sample.info().type == images::PixelType::kU16);
  CHECK(sample.info().epsg == 32633);
  CHECK(sample.info().transform == scene.info().transform);
  REQUIRE(sample.info().bands.size() == 4);
  CHECK(sample.info().bands[0].name == "B8");
  CHECK((sample.info().bands[0].scale == 1e-4 && sample.info().bands[0].offset == -0.1));  // the scene states none
  const weights::SafetensorsFile all(scratch / "one/samples.safetensors");
  CHECK(files::parse_json(all.metadata().at("scale")) == nlohmann::json{1e-4, 2e-4, 1e-4, 1e-4});
  CHECK(files::parse_json(all.metadata().at("offset")) == nlohmann::json{-0.1, 0, 0, 0});
  const weights::TensorView row = weights::row_range(all.tensor("images"), 2, 1);
  const auto numbers = sample.read({{0, 1, 2, 3}, {0, 0, 16, 16}});
  REQUIRE(numbers.size() == row.bytes);
  CHECK(std::memcmp(numbers.data(), row.data, row.bytes) == 0);
  for (const int64_t x : weights::to_i64(row)) CHECK((x >= 300 && x <= 3000));

  const Result compared = require_ok(program("ditfid", {"--real", scratch / "tiles", "--generated", scratch / "one",
                                                        "--metrics", "bands", "--json", scratch / "fid.json"}));
  CHECK_THAT(compared.out, Contains("B8 ") && Contains("ndvi") && Contains("spectral angle"));
  const auto json = read_json(scratch / "fid.json");
  CHECK(json["bands"].size() == 4);
  CHECK(json["ndvi"]["frechet"].is_number());
  require_ok(program("ditfid", {"--real", scratch / "tiles", "--generated", scratch / "tiles", "--metrics", "bands",
                                "--json", scratch / "same.json"}));
  const auto equal = read_json(scratch / "same.json");
  REQUIRE(equal["bands"].size() == 13);
  for (const auto& band : equal["bands"]) CHECK(band["frechet"] == 0.0);

  require_error(
      tiny_ditrain(scratch / "run", 4,
                   sets(settings(scratch / "tiles")) + sets({"data.scaling=[0, 5000]"}) + Args{"--resume", "auto"}),
      {"data.scaling"});
}

TEST_CASE("satellite: products of level 2A, as they are downloaded, become tiles and a run") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  write_level_2a(scratch / "products");
  const std::string bands = "B1,B2,B3,B4,B5,B6,B7,B8,B8A,B9,B11,B12";
  const auto make_32 = [&](const std::string& from, const std::string& out, const Args& more) {
    return run(program("ditdata",
                       Args{"make", "--from", from, "--bands", bands, "--tile", "32", "--out", scratch / out} + more));
  };
  const Result plain = make_32(scratch / "products", "plain", {});
  REQUIRE_EXIT(plain, 0);
  CHECK_THAT(plain.out, Contains("1 scene(s) of 12 band(s) (u16)") && Contains("9 tiles of 32 x 32"));
  CHECK_THAT(plain.err, Contains("states no number of missing pixels: --nodata 0"));
  const Result made = make_32(scratch / "products", "tiles", {"--nodata", "0", "--scale", "1e-4", "--offset", "-0.1"});
  REQUIRE_EXIT(made, 0);
  CHECK_THAT(made.out, Contains("6 tiles of 32 x 32") && Contains("3 dropped for missing pixels") &&
                           !Contains("classes from sub-folders"));
  CHECK_THAT(made.err, !Contains("--nodata 0"));
  CHECK_THAT(made.out, Contains("means of number * scale + offset: B1 "));
  const Result units =
      make_32(scratch / "products", "units", {"--nodata", "0", "--scale", "1e-4", "--offset", "-1000"});
  REQUIRE_EXIT(units, 0);
  CHECK_THAT(units.err, Contains("most of these means lie outside of -0.2 to 2") && Contains("--offset -0.1"));
  const weights::SafetensorsFile tiles(scratch / "tiles/tiles_00000.safetensors");
  CHECK(files::parse_json(tiles.metadata().at("scale")) == std::vector<double>(12, 1e-4));
  CHECK(files::parse_json(tiles.metadata().at("offset")) == std::vector<double>(12, -0.1));
  REQUIRE_EXIT(make_32(scratch / "products/S2A_MSIL2A_20220601_N0400.SAFE", "one", {"--nodata", "0"}), 0);
  const Result inspected = require_ok(program("ditdata", {"inspect", scratch / "products"}));
  CHECK_THAT(inspected.out, Contains("29 files (rasters)") && Contains(" 0 classes, "));  // no masks
  const size_t line = inspected.out.find("ditdata make --from ");                         // what it prints runs
  REQUIRE(line != std::string::npos);
  const std::string printed = inspected.out.substr(line, inspected.out.find('\n', line) - line);
  CHECK_THAT(printed,
             Catch::EndsWith(" --bands " + bands + " --nodata 0 --scale 1e-4 --offset -0.1 --tile 32 --out TILES"));
  REQUIRE_EXIT(
      run({"/bin/sh", "-c", "cd '" + (scratch / "") + "' && '" + std::string(DITRAIN_PROGRAM_DIR) + "'/" + printed}),
      0);
  CHECK(read_file(scratch / "TILES/tiles_00000.safetensors") == read_file(scratch / "tiles/tiles_00000.safetensors"));
  const Result number = make_32(scratch / "products", "number", {"--nodata", "-1"});
  CHECK(number.exit_code == 2);
  CHECK_THAT(number.err,
             Contains("--nodata is no number that this scene can hold; got -1, expected an integer from 0"));

  const Result trained = require_ok(program(
      "ditrain", Args{"--config", std::string(DITRAIN_CONFIG_DIR) + "/sentinel2_l2a.yaml", "--out", scratch / "run"} +
                     sets({"data.path=" + (scratch / "tiles"), "train.steps=2", "sample.every_steps=0",
                           "eval.fid_every_steps=0", "log.level=debug"})));
  CHECK_THAT(trained.out, Contains("settled: model.num_classes: 0") && Contains("settled: data.scale_low: ["));
}

TEST_CASE("satellite: ditdata make writes the same bytes after it was killed, and on other numbers of threads") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  write_scenes(scratch / "scenes", 512, 512);
  const auto command = [&](const std::string& out, const std::string& threads) {
    return program("ditdata",
                   {"make", "--from", scratch / "scenes", "--tile", "8", "--threads", threads, "--out", scratch / out});
  };
  REQUIRE_EXIT(run(command("one", "1")), 0);
  const auto want = data_files(scratch / "one");
  REQUIRE(want.size() > 6);
  REQUIRE_EXIT(run(command("three", "3")), 0);
  CHECK(data_files(scratch / "three") == want);
  {
    Process killed(command("killed", "2"), {.environment = trap("rename", "/.tiles_00002", "stop")});
    REQUIRE(wait_until([&] { return is_stopped(killed.pid()) || !killed.running(); }));
    killed.send(SIGKILL);
    CHECK(killed.wait().exit_code == 128 + SIGKILL);
    CHECK(data_files(scratch / "killed").size() == 2);  // and the third under a hidden name
  }
  const Result inspected = require_ok(program("ditdata", {"inspect", scratch / "killed"}));
  CHECK_THAT(inspected.out, Contains("pieces of the scenes: the ditdata make that cuts them"));
  const Result counted = require_ok(program("ditdata", {"stats", scratch / "killed"}));
  CHECK_THAT(counted.err, Contains("pieces of the scenes: the ditdata make that cuts them"));
  require_error(program("ditdata", {"stats", scratch / "killed/tiles_00000.safetensors"}),
                {"one of several in its folder", "try the whole folder " + scratch / "killed"});
  REQUIRE_EXIT(run(command("killed", "2")), 0);
  CHECK(data_files(scratch / "killed") == want);
}

TEST_CASE("satellite: bad input of ditdata and of tiles ends with 2 and says what to do") {
  if (!images::has_gdal()) {
    const TemporaryFolder scratch;
    require_error(program("ditdata", {"make", "--from", scratch.path(), "--out", scratch / "out"}), {"libgdal-dev"});
    return;
  }
  const TemporaryFolder scratch;
  write_scenes(scratch / "scenes");
  require_error(make(scratch / "scenes", scratch / "out", {"--bands", "B4,B99"}), {"lacks band B99"});
  require_error(make(scratch / "scenes", scratch / "out", {"--bands", "B4,,B3"}), {"empty name"});
  require_error(make(scratch / "scenes", scratch / "out", {"--vae", "x"}), {"--vae is a flag of ditdata encode"});
  require_error(make(scratch / "none", scratch / "out"), {"cannot list the folder", "/none'"});
  require_error(make(scratch / "scenes", scratch / "out", {"--on-bad-file", "skip"}),
                {"try moving damaged scenes away"});
  require_error(program("ditdata", {"make", "s1"}), {"what is not a flag; got s1; try --from s1"});
  require_error(program("ditdata", {"stats"}), {"takes one path"});
  require_error(program("ditdata", {"stats", scratch / "scenes"}), {"no tiles"});
  require_error(program("ditdata", {"inspect", scratch / "none"}), {"cannot list the folder", "/none'"});
  REQUIRE_EXIT(run(make(scratch / "scenes", scratch / "tiles")), 0);
  require_error(make(scratch / "scenes", scratch / "tiles", {"--max-nodata", "0.5"}), {"made in another way"});
  const auto train = [&](const std::vector<std::string>& more) {
    return tiny_ditrain(scratch / "run", 1, sets(settings(scratch / "tiles")) + sets(more));
  };
  require_error(train({"data.bands=[B4, B77, B3, B2]"}), {"B77"});
  require_error(train({"data.bands=[B4, B3]"}), {"model.in_channels: 2"});
  require_error(train({"data.scaling=[5, 5]"}), {"divide by zero"});
  require_error(train({"data.scaling=percentile"}), {"percentiles"});
  require_error(train({"model.input_size=32"}), {"ditdata make --tile N"});
  fs::remove(scratch / "tiles/stats.json");
  require_error(train({}), {"ditdata stats"});
  REQUIRE_EXIT(run(train({"data.scaling=[0, 4000]"})), 0);
}

TEST_CASE("satellite: ditdata make warns of tiles that are there twice, and of quantities that differ") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  const auto write = [&](const std::string& name, const std::vector<std::string>& bands, double scale = 1) {
    fs::create_directories(fs::path(scratch / name).parent_path());
    images::RasterToWrite raster{.width = 16, .height = 16, .type = images::PixelType::kU16, .crs = images::utm33()};
    raster.transform = images::GeoTransform{500000, 10, 0, 5400000, 0, -10};
    for (const std::string& band : bands) raster.bands.push_back({.name = band, .scale = scale});
    const std::vector<uint16_t> numbers(16 * 16 * bands.size(), 7);
    raster.pixels = numbers.data();
    images::write_geotiff(scratch / name, raster);
  };
  const auto warnings = [&](const std::string& folder, const Args& more = {}) {
    return require_ok(make(scratch / folder, scratch / (folder + "_tiles"), more)).err;
  };
  write("dates/a_20200601.tif", {"B2", "B3"}), write("dates/a_20200611.tif", {"B2", "B3"});
  CHECK_THAT(warnings("dates", {"--bands", "B3, B2"}), !Contains("warning"));
  write("twice/a_20200601.tif", {"B2", "B3"});
  write("twice/a_20200601_B2.tif", {""}), write("twice/a_20200601_B3.tif", {""});
  CHECK_THAT(warnings("twice"), Contains("1 of 2 scenes lie on the grid of another one of their folder") &&
                                    Contains("a stack beside its single bands, gives every tile twice"));
  write("unnamed/a_near.tif", {""}), write("unnamed/a_far.tif", {""});
  CHECK_THAT(warnings("unnamed"), Contains("bands of one scene need names that say so"));
  write("scales/a_20200601.tif", {"B2"}, 1e-4), write("scales/a_20200611.tif", {"B2"}, 2e-4);
  CHECK_THAT(warnings("scales"),
             Contains("has scale 0.0001 and offset 0 in band B2, and ") && Contains("ditrain refuses tiles of both"));
}

TEST_CASE("satellite: bands that are drawn from others, tile by tile in training and a whole scene at once after it") {
  if (!images::has_gdal()) SKIP("no GDAL");
  const TemporaryFolder scratch;
  write_scenes(scratch / "scenes", 32, 48);
  REQUIRE_EXIT(run(make(scratch / "scenes", scratch / "tiles")), 0);
  const auto training = [&](const std::string& out, const std::string& condition, int64_t steps,
                            const Args& more = {}) {
    return tiny_ditrain(
        scratch / out, steps,
        sets({"data.kind=tiles", "data.path=" + scratch / "tiles", "data.bands=[B8]", "data.condition=" + condition,
              "data.augment=turns", "data.scaling=[0, 4000]", "model.in_channels=1", "model.input_size=16",
              "model.patch_size=8", "model.num_classes=2", "train.global_batch=4", "sample.every_steps=2",
              "sample.num_images=4", "sample.steps=2", "eval.every_steps=2", "eval.num_images=4"}) +
            more);
  };
  const Result trained = require_ok(training("run", "[B4, B3, B2, valid]", 2));
  CHECK_THAT(trained.out, Contains("settled: model.condition_channels: 4, was 0") && Contains("given B4, B3, B2"));
  CHECK(fs::exists(scratch / "run/samples/step_00000002.png"));
  CHECK(read_metrics(scratch / "run").at(1).contains("val_mse"));
  REQUIRE_EXIT(run(training("run", "[B4, B3, B2, valid]", 3, {"--resume", "auto"})), 0);
  require_error(training("run", "[B4, B3, valid]", 4, {"--resume", "auto"}), {"data.condition"});
  require_error(training("other", "[B4, B99]", 2), {"B99"});
  require_error(training("other", "[B4, B3]", 2, sets({"train.init_from=" + scratch / "run"})),
                {"model.condition_channels"});
  require_error(training("other", "[B4, B3]", 2, sets({"model.condition_channels=3"})),
                {"model.condition_channels: 0"});

  const std::string scene = scratch / "scenes/lake/b.tif";
  const auto draw = [&](const std::string& checkpoint, const std::string& out, const Args& more) {
    return program("ditsample",
                   Args{"--checkpoint", scratch / checkpoint, "--steps", "2", "--out", scratch / out} + more);
  };
  REQUIRE_EXIT(run(draw("run", "one", {"--condition", scene, "--num", "2", "--labels", "1"})), 0);
  REQUIRE_EXIT(
      run(mpirun(2, draw("run", "two",
                         {"--condition", scene, "--num", "2", "--labels", "1", "--threads", "1", "--batch", "3"}))),
      0);
  CHECK(data_files(scratch / "one") == data_files(scratch / "two"));
  images::Raster drawn(scratch / "one/000001.tif"), given(scene);
  CHECK((drawn.info().width == 48 && drawn.info().height == 32));
  CHECK(drawn.info().transform == given.info().transform);
  CHECK(drawn.info().epsg == 32633);
  CHECK(drawn.info().type == images::PixelType::kU16);
  REQUIRE(drawn.info().bands.size() == 1);
  CHECK(drawn.info().bands[0].name == "B8");
  CHECK(read_json(scratch / "one/samples.json").at("condition") == scene);

  // In bf16 a digital number differs here and there: after three steps the model still says little.
  REQUIRE_EXIT(
      run(draw("run", "rounded", {"--condition", scene, "--num", "2", "--labels", "1", "--precision", "bf16"})), 0);
  const auto numbers = [&](const std::string& out) {
    return weights::to_i64(weights::SafetensorsFile(scratch / out + "/samples.safetensors").tensor("images"));
  };
  const std::vector<int64_t> rounded = numbers("rounded"), exact = numbers("one");
  REQUIRE(rounded.size() == exact.size());
  double difference = 0;
  for (size_t i = 0; i < exact.size(); ++i)
    difference += std::abs(double(rounded[i] - exact[i])) / double(exact.size());
  CHECK(difference > 0);
  CHECK(difference < 0.1);  // of some 4,000

  // Without --labels a scene is drawn without one, as guidance asks the model: not with the first class.
  for (const char* labels : {"", "none", "0"})
    REQUIRE_EXIT(run(draw("run", std::string("labels") + labels,
                          Args{"--condition", scene} + (*labels ? Args{"--labels", labels} : Args{}))),
                 0);
  CHECK(read_json(scratch / "labels/samples.json").at("labels") == "none");
  CHECK(read_file(scratch / "labels/000000.tif") == read_file(scratch / "labelsnone/000000.tif"));
  CHECK(read_file(scratch / "labels/samples.safetensors") != read_file(scratch / "labels0/samples.safetensors"));

  REQUIRE_EXIT(run(program("ditexport",
                           {"--checkpoint", scratch / "run", "--out", scratch / "w.safetensors", "--format", "dit"})),
               0);
  // What the tiles would tell of the scene is not in an export.
  const Args same = {"--condition", scene, "--num", "2", "--labels", "1"};
  const char* unknown = "states neither a number of missing pixels nor a mask";
  CHECK_THAT(require_ok(draw("w.safetensors", "three", same)).err, Contains(unknown));
  CHECK_THAT(require_ok(draw("run", "four", same)).err, !Contains(unknown));
  CHECK(read_file(scratch / "one/000001.tif") == read_file(scratch / "three/000001.tif"));
  require_error(
      program("ditexport", {"--checkpoint", scratch / "run", "--out", scratch / "d", "--format", "diffusers"}),
      {"given and not predicted"});
  require_error(draw("run", "none", {}), {"--condition FILE, a raster with B4, B3, B2"});
  require_error(draw("run", "none", {"--condition", scene, "--like", scene}), {"one of them"});
  images::write_u16(scratch / "few.tif", {"B4", "B3"}, 32, 32);
  require_error(draw("run", "none", {"--condition", scratch / "few.tif"}), {"B2"});
  images::write_u16(scratch / "small.tif", {"B4", "B3", "B2"}, 8, 32);
  require_error(draw("run", "none", {"--condition", scratch / "small.tif"}), {"smaller than the model's input"});
  // Numbers in other units would be scaled into nonsense.
  const auto other_units = [&](const std::string& type, const std::string& in_band, const std::string& place = "",
                               const std::string& ratio = "") {
    std::string bands = place;
    for (int b = 1; b <= 3; ++b)
      bands += fmt::format(
          "<VRTRasterBand dataType=\"{}\" band=\"{}\"><Description>B{}</Description>{}<ComplexSource><SourceFilename>{}"
          "</SourceFilename><SourceBand>{}</SourceBand>{}</ComplexSource></VRTRasterBand>",
          type, b, 5 - b, in_band, scene, b, ratio);
    std::ofstream(scratch / "units.vrt") << "<VRTDataset rasterXSize=\"48\" rasterYSize=\"32\">" << bands
                                         << "</VRTDataset>";
    return draw("run", "none", {"--condition", scratch / "units.vrt"});
  };
  require_error(other_units("Float32", "", "", "<ScaleRatio>0.0001</ScaleRatio>"),
                {"are of another type: other units?"});
  std::string empty;
  for (const char* band : {"B4", "B3", "B2"})
    empty += fmt::format(
        "<VRTRasterBand dataType=\"UInt16\"><Description>{}</Description><NoDataValue>0</NoDataValue>"
        "</VRTRasterBand>",
        band);
  std::ofstream(scratch / "empty.vrt") << "<VRTDataset rasterXSize=\"48\" rasterYSize=\"32\">" << empty
                                       << "</VRTDataset>";
  require_error(draw("run", "none", {"--condition", scratch / "empty.vrt"}), {"no pixel of the scene has data"});
  require_error(other_units("UInt16", "<Offset>-1000</Offset>"), {"another scale or offset"});
  std::ofstream(scratch / "huge.vrt") << fmt::format(
      "<VRTDataset rasterXSize=\"250000\" rasterYSize=\"250000\">{}{}{}</VRTDataset>",
      R"(<VRTRasterBand dataType="UInt16" band="1"><Description>B4</Description></VRTRasterBand>)",
      R"(<VRTRasterBand dataType="UInt16" band="2"><Description>B3</Description></VRTRasterBand>)",
      R"(<VRTRasterBand dataType="UInt16" band="3"><Description>B2</Description></VRTRasterBand>)");
  require_error(draw("run", "none", {"--condition", scratch / "huge.vrt"}), {"a scene of at most"});
  const Result coarse =
      require_ok(other_units("UInt16", "", "<SRS>EPSG:32633</SRS><GeoTransform>0, 40, 0, 0, 0, -40</GeoTransform>"));
  CHECK_THAT(coarse.err, Contains("has pixels of 40, the tiles that the model learnt from of 10"));
}

TEST_CASE("satellite: samples follow the month that they are given, on tiles whose brightness depends on it") {
  const TemporaryFolder scratch;
  constexpr int64_t kTiles = 96, kPixels = 16 * 16;
  std::vector<uint8_t> images;
  std::vector<double> metadata;
  for (int64_t t = 0; t < kTiles; ++t) {
    const int64_t month = 1 + t % 12;
    for (int64_t p = 0; p < kPixels; ++p) images.push_back(uint8_t(20 + 17 * month + (p * 7 + t * 5) % 11));
    std::vector<double> row = no_metadata();
    row[kMonth] = double(month);
    metadata.insert(metadata.end(), row.begin(), row.end());
  }
  fs::create_directories(scratch / "tiles");
  weights::write_safetensors(scratch / "tiles/a.safetensors",
                             {{"images", "U8", {kTiles, 1, 16, 16}, images.data()},
                              {"metadata", "F64", {kTiles, int64_t(kNumMetadata)}, metadata.data()}},
                             {{"bands", R"(["grey"])"}});
  const auto training = [&](const std::string& numbers) {
    return tiny_ditrain(scratch / "run", 300,
                        sets({"data.kind=tiles", "data.path=" + scratch / "tiles", "model.metadata=" + numbers,
                              "model.in_channels=1", "model.input_size=16", "model.patch_size=8", "model.num_classes=0",
                              "model.learn_sigma=false", "diffusion.process=flow", "diffusion.prediction=x0",
                              "train.global_batch=16", "optimizer.lr=3e-3", "ema.decay=0.95", "sample.cfg_scale=1"}));
  };
  require_error(training("[year]"), {"no sample of the data knows; got year"});
  REQUIRE_EXIT(run(training("[month]")), 0);

  std::ofstream table(scratch / "months.csv");
  table << "\xef\xbb\xbf"
        << "month \r\n";  // as a program for tables writes it
  for (int month = 1; month <= 12; ++month) table << month << '\n';
  table.close();
  const auto draw = [&](const std::string& out, const Args& more) {
    return program("ditsample", Args{"--checkpoint", scratch / "run", "--num", "12", "--steps", "8", "--sampler",
                                     "euler", "--out", scratch / out} +
                                    more);
  };
  const auto brightness = [&](const std::string& out) {
    const std::vector<int64_t> all =
        weights::to_i64(weights::SafetensorsFile(scratch / out + "/samples.safetensors").tensor("images"));
    std::vector<double> means;
    for (size_t i = 0; i < 12; ++i)
      means.push_back(std::accumulate(all.begin() + int64_t(i) * kPixels, all.begin() + int64_t(i + 1) * kPixels, 0.0) /
                      kPixels);
    return means;
  };
  REQUIRE_EXIT(run(draw("months", {"--metadata", scratch / "months.csv"})), 0);
  write_file(scratch / "two.csv", "month\n1\n2\n");
  require_error(draw("two", {"--metadata", scratch / "two.csv"}), {"another number of lines", "--num 2"});
  const std::vector<double> means = brightness("months");
  double distance = 0;  // of ranks, squared
  for (size_t i = 0; i < 12; ++i) {
    const auto rank = std::count_if(means.begin(), means.end(), [&](double m) { return m < means[i]; });
    distance += double((rank - int64_t(i)) * (rank - int64_t(i)));
  }
  const double correlation = 1 - 6 * distance / (12 * (144 - 1));
  INFO("rank correlation " << correlation);
  CHECK(correlation >= 0.8);
  REQUIRE_EXIT(run(draw("july", {"--metadata", "month=7", "--cfg-scale", "1.5"})), 0);
  for (const double mean : brightness("july")) CHECK(mean == Approx(20 + 17 * 7 + 5).margin(35));
  CHECK(read_json(scratch / "july/samples.json").at("metadata") == "month=7");

  require_error(draw("tiles", {"--metadata", "month=7"}), {"--out holds tiles, latents or weights"});
  require_error(draw("none", {"--metadata", "month=13"}), {"month out of range; got 13, expected 1 to 12"});
  require_error(draw("none", {"--metadata", "year=2020"}), {"not trained with; got year"});
  require_error(draw("none", {"--metadata", "moon=1"}), {"month"});
  require_error(draw("none", {"--metadata", "month"}), {"NAME=VALUE"});
  require_error(
      program("ditexport", {"--checkpoint", scratch / "run", "--out", scratch / "d", "--format", "diffusers"}),
      {"numbers that condition the model"});
}
