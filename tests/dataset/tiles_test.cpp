#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/dataset/augment.hpp"
#include "ditrain/dataset/band_scaling.hpp"
#include "ditrain/dataset/kinds.hpp"
#include "ditrain/dataset/loader.hpp"
#include "ditrain/dataset/tile_statistics.hpp"
#include "ditrain/files/files.hpp"
#include "support/files.hpp"
#include "tile_fixture.hpp"

using namespace ditrain;
using namespace ditrain::dataset;

namespace {

Config tiles_config(const std::string& path, Scaling scaling = {ScalingFrom::kRange, 0, 1000}) {
  Config config;
  config.kind = find_kind("tiles");
  config.path = path;
  config.scaling = scaling;
  return config;
}

float scaled(double number, double low = 0, double high = 1000) { return float(2 * (number - low) / (high - low) - 1); }

}  // namespace

TEST_CASE("tiles: numbers become [-1, 1], bands come by name and in the order that is wanted") {
  const ScratchFolder scratch;
  TestTiles tiles{.labels = {0, 2, 1, 0}, .metadata = {{"classes", R"(["a","b","c"])"}}};
  tiles.write(scratch.at("set/a.safetensors"));
  Config config = tiles_config(scratch / "set");
  config.bands = {"b04", "B2"};
  const auto data = open_dataset(config, {2, 4, 4}, 3, 0);
  CHECK(data->size() == 4);
  CHECK(data->num_classes() == 3);
  CHECK(data->class_names() == std::vector<std::string>{"a", "b", "c"});
  const Sample sample = load(*data, 1), mirrored = load(*data, 1, true);
  CHECK(sample.label == 2);
  for (int64_t p = 0; p < 16; ++p) {
    CHECK(sample.chw[size_t(p)] == Approx(scaled(301 + double(p))).margin(1e-6));
    CHECK(sample.chw[size_t(16 + p)] == Approx(scaled(101 + double(p))).margin(1e-6));
    CHECK(mirrored.chw[size_t(p)] == sample.chw[size_t(p / 4 * 4 + 3 - p % 4)]);
  }
  CHECK(data->describe().find("4 of 4 x 4 (u16)") != std::string::npos);
}

TEST_CASE("tiles: samples go back to the digital numbers they came from, and are limited to the range") {
  const ScratchFolder scratch;
  TestTiles().write(scratch.at("a.safetensors"));
  Config config = tiles_config(scratch / "a.safetensors", {ScalingFrom::kRange, 100, 310});
  settle_tiles(config);
  CHECK(config.bands == std::vector<std::string>{"B2", "B3", "B4"});
  CHECK(config.number_type == images::PixelType::kU16);
  const BandScaling scaling = scaling_of(config);
  const auto data = open_dataset(config, {3, 4, 4}, 0, 0);
  const std::vector<float> values = load(*data, 3).chw;
  const std::vector<std::byte> bytes = scaling.numbers(values.data(), 16);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t number;
    std::memcpy(&number, bytes.data() + 2 * i, 2);
    CHECK(int(number) == std::min<int>(310, 100 * (int(i) / 16 + 1) + 3 + int(i) % 16));
  }
  CHECK(scaling.number(0, 1e9) == 65535);
  CHECK_THROWS_AS(scaling.number(0, std::nan("")), LogicFault);
}

TEST_CASE("tiles: missing pixels get the mean of the others, a band without any is an unreadable sample") {
  const ScratchFolder scratch;
  TestTiles tiles{.n = 3, .bands = {"x"}, .metadata = {{"nodata", "[7]"}}};
  std::vector<float> numbers(48, 500);
  numbers[1] = 7, numbers[2] = std::nanf(""), numbers[3] = std::numeric_limits<float>::infinity(), numbers[4] = 516;
  for (size_t i = 16; i < 32; ++i) numbers[i] = 7;
  std::vector<uint8_t> valid(48, 1);
  valid[5] = 0, numbers[5] = 900;
  tiles.write(scratch.at("a.safetensors"), numbers, "F32", valid);
  const auto data = open_dataset(tiles_config(scratch / "a.safetensors"), {1, 4, 4}, 0, 0);
  const Sample sample = load(*data, 0);
  const double mean = 500 + 16.0 / 12;
  for (const size_t i : {1u, 2u, 3u, 5u}) CHECK(sample.chw[i] == Approx(scaled(mean)).margin(1e-6));
  CHECK(sample.chw[4] == Approx(scaled(516)).margin(1e-6));
  refused([&] { load(*data, 1); }, "tile 1] no pixel of band x is valid");
  Config skips = tiles_config(scratch / "a.safetensors");
  skips.on_bad_file = OnBadFile::kSkip;
  const auto skipping = open_dataset(skips, {1, 4, 4}, 0, 0);
  CHECK(load(*skipping, 1) == load(*skipping, 2));
  CHECK(skipping->bad_files() == 1);
}

TEST_CASE("tiles: a fill number of f32 is what its pixels have, however many digits the metadata have") {
  const ScratchFolder scratch;
  TestTiles tiles{.n = 1, .bands = {"x"}, .metadata = {{"nodata", "[-9999.9]"}}};
  std::vector<float> numbers(16, 500);
  numbers[3] = -9999.9f;
  tiles.write(scratch.at("a.safetensors"), numbers, "F32", {});
  const BandStatistics x = statistics_of(TileShards(scratch / "a.safetensors")).bands.front();
  CHECK((x.valid == 15 && x.mean == 500));
}

TEST_CASE("tiles: statistics are exact for every type, without missing pixels") {
  const ScratchFolder scratch;
  TestTiles tiles{.n = 1, .side = 20, .bands = {"x"}, .metadata = {{"nodata", "[0]"}}};
  const auto check = [&](auto number, const std::string& type, double shift) {
    std::vector<decltype(number)> numbers;
    for (int i = 0; i < 400; ++i) numbers.push_back(decltype(number)((i * 37) % 200 + shift));  // twice 0..199
    tiles.write(scratch.at("a.safetensors"), numbers, type);
    const TileStatistics all = statistics_of(TileShards(scratch / "a.safetensors"));
    const BandStatistics& s = all.bands.at(0);
    CAPTURE(type);
    const int64_t gone = shift == 0 ? 2 : 0;
    CHECK((s.missing == gone && s.valid == 400 - gone));
    if (gone == 0) {
      CHECK(s.mean == Approx(99.5 + shift));
      CHECK(s.deviation == Approx(std::sqrt((200.0 * 200 - 1) / 12)));
      CHECK(s.percentile(0.5) == shift);
      CHECK(s.percentile(50) == 99 + shift);
      CHECK(s.percentile(99.5) == 198 + shift);
      CHECK((s.min == shift && s.max == 199 + shift));
    }
    write_statistics(scratch / "stats.json", all);
    const TileStatistics read = read_statistics(scratch / "stats.json");
    CHECK(read.bands[0].mean == s.mean);
    CHECK(read.bands[0].percentiles == s.percentiles);
    CHECK(read.type == all.type);
  };
  check(uint8_t(), "U8", 0);
  check(uint8_t(), "U8", 50);
  check(uint16_t(), "U16", 1000);
  check(int16_t(), "I16", -300);
  check(float(), "F32", -300.25);
  check(float(), "F32", 1e4);
  files::write_file_atomically(scratch / "stats.json", "{\"tiles\": 3}");
  refused([&] { read_statistics(scratch / "stats.json"); }, "no statistics of tiles");
  tiles.write(scratch.at("nan/a.safetensors"), std::vector<float>(400, NAN), "F32");
  refused([&] { statistics_of(TileShards(scratch / "nan")); }, "band x has no valid pixel at all");
}

TEST_CASE("tiles: ranges from percentiles, deviations and types of stats.json") {
  const ScratchFolder scratch;
  TestTiles().write(scratch.at("set/a.safetensors"));
  Config config = tiles_config(scratch / "set", {ScalingFrom::kPercentiles});
  refused([&] { settle_tiles(config); }, "ditdata stats");
  const TileStatistics all = statistics_of(TileShards(scratch / "set"), 3);
  write_statistics(scratch / "set/stats.json", all);
  settle_tiles(config);
  CHECK(config.scale_low == std::vector<double>{100, 200, 300});
  CHECK(config.scale_high == std::vector<double>{118, 218, 318});
  Config deviation = tiles_config(scratch / "set", {ScalingFrom::kDeviation});
  settle_tiles(deviation);
  CHECK(deviation.scale_low[1] == Approx(all.bands[1].mean - 2 * all.bands[1].deviation));
  Config type = tiles_config(scratch / "set", {ScalingFrom::kType});
  settle_tiles(type);
  CHECK(type.scale_high == std::vector<double>(3, 65535));
  Config kept = tiles_config(scratch / "set", {ScalingFrom::kType});
  kept.scale_low = {1, 2, 3};
  settle_tiles(kept);
  CHECK(kept.scale_low == std::vector<double>{1, 2, 3});
  Config old = tiles_config(scratch / "set", {ScalingFrom::kPercentiles});
  TestTiles().write(scratch.at("set/b.safetensors"));
  refused([&] { settle_tiles(old); }, "ditdata stats");
  // Those of one file would take the place of those of all.
  Config of_file = tiles_config(scratch / "set/b.safetensors", {ScalingFrom::kPercentiles});
  CHECK((is_one_of_several(of_file.path) && !is_one_of_several(scratch / "set")));
  write_statistics(scratch / "set/stats.json", statistics_of(TileShards(scratch / "set")));
  refused([&] { settle_tiles(of_file); },
          "got 8 tiles of u16, expected 4 tiles of u16; try the whole folder " + scratch / "set" + ", data.scaling");
  std::filesystem::remove(scratch / "set/b.safetensors");
  CHECK_FALSE(is_one_of_several(scratch / "set/a.safetensors"));
  TileStatistics other = all;
  other.type = images::PixelType::kI16;
  write_statistics(scratch / "set/stats.json", other);
  refused([&] { settle_tiles(old); }, "4 tiles of i16");
  // As many other tiles of the same type; a file without a checksum is an earlier version's.
  write_statistics(scratch / "set/stats.json", all);
  std::vector<uint16_t> numbers = TestTiles().numbers();
  for (uint16_t& x : numbers) x = uint16_t(x * 2);
  TestTiles().write(scratch / "set/a.safetensors", numbers, "U16");
  refused([&] { settle_tiles(old); }, "is of other tiles: they have changed since");
  other = all, other.checksum.clear();
  write_statistics(scratch / "set/stats.json", other);
  CHECK_NOTHROW(settle_tiles(old));
}

TEST_CASE("tiles: a range without width, unknown and doubled bands and other sizes are refused") {
  const ScratchFolder scratch;
  TestTiles tiles{.n = 1, .bands = {"B2", "B10"}};
  tiles.write(scratch.at("set/a.safetensors"), std::vector<uint16_t>(32, 64), "U16");
  write_statistics(scratch / "set/stats.json", statistics_of(TileShards(scratch / "set")));
  Config config = tiles_config(scratch / "set", {ScalingFrom::kPercentiles});
  for (const ScalingFrom from : {ScalingFrom::kPercentiles, ScalingFrom::kDeviation}) {
    config.scaling = {from};
    refused([&] { settle_tiles(config); }, "band B2 has no width: scaling would divide by zero; got 64 to 64");
  }
  config = tiles_config(scratch / "set");
  config.bands = {"B20"};
  refused([&] { settle_tiles(config); }, "B2");
  refused(
      [&] {
        find_bands({"band1", "band2"}, {"B1"}, "x");
      },
      "no band of this name; got B1, expected one of band1, band2; try ditdata make --names");
  const auto asked = [](const std::vector<std::string>& names) {
    find_bands({"B2", "B3", "B4", "B8"}, names, "data.bands");
  };
  refused(
      [&] {
        asked({"Blue", "Green", "Red", "NIR"});
      },
      "got Blue, expected one of B2, B3, B4, B8; try --set 'data.bands=[B2,B3,B4,B8]'");
  refused([&] { asked({"B3", "B2", "B1", "B8"}); }, "got B1, expected one of B2, B3, B4, B8; try --set 'data.bands=");
  CHECK_THROWS_WITH(asked({"Red"}), !Catch::Contains("; try --set"));
  refused(
      [&] {
        find_bands({"Red", "Green"}, {"Red", "Gren"}, "data.bands");
      },
      "got Gren, expected one of Red, Green; try Green");
  config.bands = {"B2", "b02"};
  refused([&] { settle_tiles(config); }, "two bands of one name");
  config.bands = {};
  refused([&] { open_dataset(config, {3, 4, 4}, 0, 0); }, "model.in_channels: 2");
  refused([&] { open_dataset(config, {2, 8, 8}, 0, 0); }, "another size");
  config.number_type = images::PixelType::kU8;
  refused([&] { settle_tiles(config); }, "data.number_type: auto");
  config = tiles_config(scratch / "set");
  for (const auto& [low, high] : {std::pair{-1e308, 1e308}, {0.0, 1e-320}}) {
    Config extreme = config;
    extreme.bands = {"B2"}, extreme.scale_low = {low}, extreme.scale_high = {high};
    refused([&] { settle_tiles(extreme); }, "the range of band B2 is wider or narrower");
  }
  config.scale_low = {1}, config.scale_high = {2};
  refused([&] { settle_tiles(config); }, "one per band");
}

TEST_CASE("tiles: shards that do not go together are refused by name") {
  const ScratchFolder scratch;
  const auto refuse = [&](const std::function<void(TestTiles&)>& change, const std::string& text) {
    TestTiles().write(scratch.at("set/a.safetensors"));
    TestTiles other;
    change(other);
    other.write(scratch.at("set/b.safetensors"));
    refused([&] { TileShards(scratch / "set"); }, text);
  };
  refuse([](TestTiles& t) { t.bands = {"B3", "B2", "B4"}; }, "b.safetensors] this shard differs");
  refuse([](TestTiles& t) { t.bands = {"B3", "B3", "B4"}; }, "two bands of one name");
  refuse([](TestTiles& t) { t.side = 5; }, "in its size");
  refuse([](TestTiles& t) { t.labels = {0, 0, 0, 0}; }, "in its labels");
  refuse([](TestTiles& t) { t.labels = {0, 0, 0, -1}; }, "label out of range");
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  refuse([&](TestTiles& t) { t.metadata = {{"scale", "[1, 1, " + deep + "]"}}; }, "nested too deeply");
  TestTiles drawn;  // by ditsample, without labels
  drawn.labels = {-1, -1, -1, -1};
  drawn.write(scratch.at("drawn/a.safetensors"));
  CHECK(TileShards(scratch / "drawn").num_classes() == 0);
  refuse([](TestTiles& t) { t.metadata = {{"nodata", "[1]"}}; }, "a list of 3");
  refuse([](TestTiles& t) { t.metadata = {{"scale", "[1,2,\"x\"]"}}; }, "no list of numbers");
  refuse([](TestTiles& t) { t.metadata = {{"offset", "[1,"}}; }, "metadata `offset`");
  const std::vector<double> wide(16);
  weights::write_safetensors(scratch.at("one/a.safetensors"), {{"images", "F64", {1, 1, 4, 4}, wide.data()}});
  refused([&] { TileShards(scratch / "one"); }, "U8, U16, I16 or F32");
  refused([&] { TileShards(scratch / "none"); }, "none");
  weights::write_safetensors(scratch.at("empty/a.safetensors"),
                             {{"images", "U8", {0, int64_t{1} << 24, 1, 1}, nullptr}});
  refused([&] { TileShards(scratch / "empty"); }, "up to 4096 channels");
  TestTiles{}.write(scratch.at("cut/a.safetensors"));
  const std::string whole = get_file(scratch / "cut/a.safetensors");
  put_file(scratch / "cut/a.safetensors", whole.substr(0, whole.size() - 1));
  refused([&] { TileShards(scratch / "cut"); }, "a.safetensors] the data is truncated");
}

TEST_CASE("tiles: shards of several scales have none in common, unless the config states one") {
  const ScratchFolder scratch;
  TestTiles().write(scratch.at("set/a.safetensors"));
  TestTiles{.metadata = {{"scale", "[1, 2, 1]"}}}.write(scratch.at("set/b.safetensors"));
  Config config = tiles_config(scratch / "set");
  refused([&] { settle_tiles(config); }, "b.safetensors] band B3 has another scale than in the first shard; got 2");
  Config other = tiles_config(scratch / "set");
  other.bands = {"B2", "B4"};
  settle_tiles(other);
  CHECK(other.number_scale == std::vector<double>{1, 1});
  config.number_scale = {1, 1, 1}, config.number_offset = {0, 0, 0};
  settle_tiles(config);
  refused([&] { tile_facts(config); }, "has another scale");
}

TEST_CASE("tiles: colours are found by words, and by numbers where all of them say whose they are") {
  struct Case {
    std::vector<std::string> names;
    std::vector<int> colours;  // red, green, blue, near infrared
  };
  const std::vector<int> none(4, -1);
  const Case cases[] = {
      {{"Blue", "Green", "Red", "NIR"}, {2, 1, 0, 3}},
      {{"B02 blue", "B03 green", "B04 red", "B08 near infrared"}, {2, 1, 0, 3}},
      {{"Coastal Blue", "Blue", "Green", "Yellow", "Red", "Red Edge", "NIR1", "NIR2"}, {4, 2, 1, 6}},   // WorldView
      {{"coastal_blue", "blue", "green_i", "green", "yellow", "red", "rededge", "nir"}, {5, 3, 1, 7}},  // PlanetScope
      {{"vegetation red edge", "Red edge 2", "B4 - Red", "SWIR", "Short-wave infrared", "Near-Infrared"},
       {2, -1, -1, 5}},
      {{"Red Edge", "Short wave infra red", "Thermal infrared", "narrow-band"}, none},
      {{"near infra red", "visible red (665 nm)"}, {1, -1, -1, 0}},
      {{"B1", "B02", "B03", "B04", "B8", "B8A"}, {3, 2, 1, 4}},  // Sentinel-2
      {{"B02_10m", "B03_10m", "B04_10m", "B05_20m", "B11_20m", "B12_20m"}, {2, 1, 0, -1}},
      {{"B8", "B4", "B3", "B2"}, {1, 2, 3, -1}},  // Sentinel-2, or Landsat 8 with its panchromatic B8
      {{"B8", "B4", "B3", "B2", "B12"}, {1, 2, 3, 0}},
      {{"B4", "B3", "B2", "B1"}, {1, 2, 3, 0}},            // Gaofen-2
      {{"B1", "B2", "B3", "B4", "B5", "B7", "B8"}, none},  // Landsat 7: B4 is near infrared, B8 panchromatic
      {{"B1", "B2", "B3", "B4", "B5", "B6", "B7"}, none},  // Landsat 8: B4 is red, B5 near infrared
      {{"B2", "B3", "B4", "B5", "B6", "B7", "B10"}, none},
      {{"B4", "B8"}, none},
      {{"B2", "B3", "B4"}, none},
      {{"B1", "B2", "B3", "B4", "B12", "B36"}, none},  // MODIS
      {{"B4 red", "B3 green", "B2", "B5"}, {0, 1, -1, -1}},
      {{"vv", "vh"}, none},
      {{"band1", "band2", "band3", "band4"}, none}};
  for (const Case& c : cases) {
    CAPTURE(c.names);
    const ColourBands found = find_colours(c.names);
    CHECK(std::vector<int>{found.red, found.green, found.blue, found.nir} == c.colours);
  }
  // Some of the bands are what the longer list says.
  const CommonColours common = find_common_colours({"B4", "B8"}, {"B1", "B2", "B3", "B04", "B08", "B8A"});
  CHECK((common.first.red == 0 && common.first.nir == 1 && common.first.green == -1));
  CHECK((common.second.red == 3 && common.second.nir == 4 && common.second.green == -1));
}

TEST_CASE("tiles: what numbers of bands mean is part of the config of a run") {
  const ScratchFolder scratch;
  TestTiles tiles;
  tiles.metadata = {{"scale", "[0.5, null, 2]"}, {"offset", "[-1, 3, null]"}};
  tiles.write(scratch.at("tiles/a.safetensors"));
  Config config;
  config.kind = find_kind("tiles"), config.path = scratch / "tiles", config.bands = {"B4", "B2"};
  config.scaling = {ScalingFrom::kRange, 0, 1000};
  settle_tiles(config);
  CHECK(config.number_scale == std::vector<double>{2, 0.5});
  CHECK(config.number_offset == std::vector<double>{0, -1});
  CHECK(scaling_of(config).scale == config.number_scale);
  CHECK(scaling_of(config).offset == config.number_offset);
  config.number_scale = {7, 8};
  settle_tiles(config);
  CHECK(config.number_scale == std::vector<double>{7, 8});
  config.number_offset = {1};
  refused([&] { settle_tiles(config); }, "data.number_scale and data.number_offset do not go with data.bands");
}

TEST_CASE("augmentation: turns and flips move every pixel to its place, and back") {
  const SampleShape square{2, 3, 3};
  std::vector<float> x(18);
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(i);
  auto y = x;
  quarter_turns(square, 1, y.data());
  CHECK(std::vector<float>(y.begin(), y.begin() + 9) == std::vector<float>{2, 5, 8, 1, 4, 7, 0, 3, 6});
  CHECK(y[9] == 11);
  quarter_turns(square, 3, y.data());
  CHECK(y == x);
  quarter_turns(square, 2, y.data());
  CHECK((y[0] == 8 && y[8] == 0 && y[9] == 17));
  y = x;
  turn_upside_down(square, y.data());
  CHECK(std::vector<float>(y.begin(), y.begin() + 9) == std::vector<float>{6, 7, 8, 3, 4, 5, 0, 1, 2});
  Config config;
  config.augment = Augment::kTurns;
  refused([&] { open_dataset(config, {3, 8, 16}, 0, 0); }, "square");
  config.kind = find_kind("latents"), config.path = "none";
  refused([&] { open_dataset(config, {3, 8, 8}, 0, 0); }, "latents of turned");
}

TEST_CASE("augmentation: the loader draws all positions of a tile, the same for the same seed") {
  const ScratchFolder scratch;
  TestTiles{.n = 1, .side = 4, .bands = {"x"}}.write(scratch.at("a.safetensors"));
  const auto data = open_dataset(tiles_config(scratch / "a.safetensors"), {1, 4, 4}, 0, 0);
  const auto positions = [&](Augment augment, bool mirror) {
    Loader loader(*data, EpochSampler(1, 3),
                  {.global_batch = 16, .count = 16, .seed = 3, .random_flip = mirror, .augment = augment});
    std::set<std::vector<float>> seen;
    for (int step = 0; step < 8; ++step) {
      const Batch batch = loader.next();
      for (int64_t i = 0; i < 16; ++i)
        seen.insert(std::vector<float>(batch.images.begin() + 16 * i, batch.images.begin() + 16 * (i + 1)));
    }
    return seen;
  };
  CHECK(positions(Augment::kNone, false).size() == 1);
  CHECK(positions(Augment::kNone, true).size() == 2);
  CHECK(positions(Augment::kFlips, true).size() == 4);
  CHECK(positions(Augment::kTurns, false).size() == 4);
  CHECK(positions(Augment::kTurns, true).size() == 8);
}

TEST_CASE("tiles: those that are given have to cover the places of those that are predicted") {
  const ScratchFolder scratch;
  const TestTiles tiles{.n = 1, .places = {500, 10, 0, 900, 0, -10}};
  tiles.write(scratch.at("set/a.safetensors"));
  const auto open_with = [&](const TestTiles& given) {
    given.write(scratch.at("given/a.safetensors"));
    Config config = tiles_config(scratch / "set");
    config.condition = {scratch / "given", "B4"};
    settle_tiles(config);
    return open_dataset(config, {3, 4, 4}, 0, 0);
  };
  const auto changed = [&](auto change) {
    TestTiles given = tiles;
    change(given);
    return given;
  };
  CHECK(open_with(changed([](TestTiles& t) { t.places[0] += 4; }))->condition_channels() == 1);
  CHECK_NOTHROW(open_with(changed([](TestTiles& t) { t.places.clear(); })));  // not known
  refused([&] { open_with(changed([](TestTiles& t) { t.places[0] += 6; })); }, "tile 0 covers another place");
  refused([&] { open_with(changed([](TestTiles& t) { t.places[5] = -20; })); }, "tile 0 covers another place");
  refused([&] { open_with(changed([](TestTiles& t) { t.n = 2, t.places.resize(12); })); },
          "their number; got 2, expected 1; try ditdata make with the same --tile");
  const auto dropped = [](TestTiles& t) { t.n = 2, t.places.resize(12), t.metadata = {{"dropped", "3"}}; };
  refused(
      [&] { open_with(changed(dropped)); },
      "with --max-nodata 1, or one folder of rasters with the bands of both: 3 and 0 tiles were dropped for missing");
}

TEST_CASE("tiles: a folder whose ditdata make is not done warns, and leads to no statistics of a part") {
  const ScratchFolder scratch;
  const auto warnings = [&](const std::string& next, const std::string& pieces, const std::string& path = "") {
    TestTiles{.metadata = {{"next", next}, {"pieces", pieces}}}.write(scratch.at("set/a.safetensors"));
    const Config config = tiles_config(scratch / "set" + path);
    return open_dataset(config, {3, 4, 4}, 0, 0)->warnings();
  };
  const std::vector<std::string> some = warnings("[60,3]", "188");
  REQUIRE(some.size() == 1);
  CHECK_THAT(some[0], Catch::Contains("are of 60 of 188 pieces of the scenes: the ditdata make"));
  Config config = tiles_config(scratch / "set", {ScalingFrom::kPercentiles});
  refused([&] { settle_tiles(config); }, "try ditdata make again: the tiles in");
  CHECK(warnings("[60,3]", "188", "/a.safetensors").empty());  // a part is what was asked for
  CHECK(warnings("[188,0]", "188").empty());
  for (const char* damaged : {"[]", "[-1,0]", "[0.5,0]", "{\"a\":1}", "x", "[18446744073709551615,0]"})
    CHECK(warnings(damaged, "188").empty());
  CHECK(warnings("[60,3]", "").empty());
}

TEST_CASE("tiles: bands that are given come scaled beside those that are predicted, and move with them") {
  const ScratchFolder scratch;
  TestTiles{}.write(scratch.at("set/a.safetensors"));
  Config config = tiles_config(scratch / "set");
  config.condition = {"b4", "B2"};
  settle_tiles(config);
  CHECK(config.bands == std::vector<std::string>{"B3"});  // what is left
  CHECK(config.condition == std::vector<std::string>{"B4", "B2"});
  CHECK(config.condition_high == std::vector<double>{1000, 1000});
  const auto data = open_dataset(config, {1, 4, 4}, 0, 0);
  CHECK(data->condition_channels() == 2);
  CHECK(data->describe().find("given B4, B2") != std::string::npos);
  CHECK(condition_names(config) == config.condition);
  // What decides between a band and a folder is the word, not what lies in the folder where the program runs.
  Config of_folder = tiles_config(scratch / "set");
  of_folder.condition = {scratch / "set", "B4", "valid"};
  settle_tiles(of_folder);
  CHECK(condition_of(of_folder).path == scratch / "set");
  CHECK(condition_names(of_folder) == std::vector<std::string>{"B4", "valid"});
  std::vector<float> chw(16);
  Condition condition;
  for (const bool flip : {false, true}) {
    data->load(1, flip, chw.data(), &condition);
    REQUIRE(condition.image.size() == 32);
    CHECK(condition.valid.empty());
    for (int64_t p = 0; p < 16; ++p) {
      const int64_t at = flip ? p / 4 * 4 + 3 - p % 4 : p;
      CHECK(chw[size_t(p)] == Approx(scaled(201 + double(at))).margin(1e-6));
      CHECK(condition.image[size_t(p)] == Approx(scaled(301 + double(at))).margin(1e-6));
      CHECK(condition.image[size_t(16 + p)] == Approx(scaled(101 + double(at))).margin(1e-6));
    }
  }
  LoaderConfig turned{.global_batch = 8, .count = 8, .seed = 3, .augment = Augment::kTurns};
  const Batch batch = Loader(*data, EpochSampler(4, 3), turned).next();
  for (size_t i = 0; i < 8; ++i)  // B4 is B3 + 100 everywhere
    for (size_t p = 0; p < 16; ++p)
      CHECK(batch.conditions[i].image[p] == Approx(batch.images[i * 16 + p] + 0.2).margin(1e-6));
}

TEST_CASE("tiles: a second folder is given with a channel of where it has data, and what is missing does not count") {
  const ScratchFolder scratch;
  TestTiles target{.bands = {"B2"}, .metadata = {{"nodata", "[103]"}}}, radar{.bands = {"VV"}};
  target.write(scratch.at("set/a.safetensors"));
  std::vector<uint8_t> valid(4 * 16, 1);
  valid[5] = 0;                                          // of tile 0
  std::fill(valid.begin() + 16, valid.begin() + 32, 0);  // tile 1
  radar.write(scratch.at("radar/a.safetensors"), radar.numbers(), "U16", valid);
  Config config = tiles_config(scratch / "set");
  config.condition = {scratch / "radar", "VV", "valid"};
  settle_tiles(config);
  const auto data = open_dataset(config, {1, 4, 4}, 0, 0);
  REQUIRE(data->condition_channels() == 2);
  std::vector<float> chw(16);
  Condition condition;
  data->load(0, true, chw.data(), &condition);
  CHECK(std::count(condition.valid.begin(), condition.valid.end(), 0) == 1);
  CHECK(condition.valid[0] == 0);  // number 103 is pixel 3, mirrored
  const size_t gone = 4 + 2;       // pixel 5, mirrored
  CHECK(condition.image[16 + gone] == -1);
  CHECK(std::count(condition.image.begin() + 16, condition.image.end(), 1.0f) == 15);
  double mean = 0;
  for (int p = 0; p < 16; ++p) mean += p == 5 ? 0 : scaled(100 + p) / 15;
  CHECK(condition.image[gone] == Approx(mean).margin(1e-6));
  data->load(1, false, chw.data(), &condition);
  CHECK(std::count(condition.image.begin(), condition.image.begin() + 16, 0.0f) == 16);  // nothing is known
  CHECK(std::count(condition.image.begin() + 16, condition.image.end(), -1.0f) == 16);

  const auto refuse = [&](const std::vector<std::string>& given, const std::string& text) {
    Config other = tiles_config(scratch / "set");
    other.condition = given;
    refused([&] { settle_tiles(other), open_dataset(other, {1, 4, 4}, 0, 0); }, text);
  };
  refuse({scratch / "radar", "VH"}, "one of VV");
  refuse({"B2"}, "none is left to predict");
  refuse({"valid"}, "names no bands");
  refuse({scratch / "none"}, "data.condition");
  TestTiles{.side = 8, .bands = {"VV"}}.write(scratch.at("large/a.safetensors"));
  refuse({scratch / "large"}, "their size; got 8 x 8, expected 4 x 4");
  TestTiles{.n = 3, .bands = {"VV"}}.write(scratch.at("few/a.safetensors"));
  refuse({scratch / "few"}, "their number; got 3, expected 4");
  config.bands = {"B2"}, config.condition = {"B2"};
  refused([&] { settle_tiles(config); }, "predicted and given at once");
}

TEST_CASE("tiles: metadata comes with each tile, unknown where it is NaN, and is held against its ranges") {
  const ScratchFolder scratch;
  TestTiles tiles;
  for (int64_t t = 0; t < 4; ++t) {
    std::vector<double> row = no_metadata();
    row[kMonth] = double(t + 1), row[kLatitude] = t == 0 ? NAN : -33.5;
    tiles.known.insert(tiles.known.end(), row.begin(), row.end());
  }
  tiles.write(scratch.at("set/a.safetensors"));
  const auto data = open_dataset(tiles_config(scratch / "set"), {3, 4, 4}, 0, 0);
  CHECK((data->knows(kMonth) && data->knows(kLatitude) && !data->knows(kYear)));
  std::vector<float> chw(48);
  Condition condition;
  data->load(2, false, chw.data(), &condition);
  REQUIRE(condition.numbers.size() == kNumMetadata);
  CHECK((condition.numbers[kMonth] == 3 && condition.numbers[kLatitude] == -33.5));
  CHECK(std::isnan(condition.numbers[kDay]));
  data->load(0, false, chw.data(), &condition);
  CHECK(std::isnan(condition.numbers[kLatitude]));
  const auto refuse = [&](const std::function<void(std::vector<double>&)>& change, const std::string& text) {
    TestTiles bad = tiles;
    change(bad.known);
    bad.write(scratch.at("bad/a.safetensors"));
    refused([&] { TileShards(scratch / "bad"); }, text);
  };
  refuse([](auto& known) { known[7 + kMonth] = 13; }, "tile 1] month out of range; got 13, expected 1 to 12");
  refuse([](auto& known) { known[kLongitude] = 181; }, "longitude out of range");
  refuse([](auto& known) { known.resize(4 * 6); }, "`metadata` does not go with `images`");
}
