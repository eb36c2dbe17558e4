#include "ditrain/eval/composite.hpp"

#include <catch2/catch.hpp>

#include "dataset/tile_fixture.hpp"

using namespace ditrain;
using namespace ditrain::eval;
using dataset::TestTiles;

namespace {

// Two tiles of 8 x 8 whose numbers in a band are 10 (k + 1) + pixel, k being the place of the name in Red ... NIR.
template <class T>
void write_tiles(const std::string& path, const std::string& type, const std::vector<std::string>& bands,
                 const std::map<std::string, std::string>& metadata = {}) {
  const std::vector<std::string> all = {"Red", "Green", "Blue", "NIR"};
  std::vector<T> numbers;
  for (int64_t tile = 0; tile < 2; ++tile)
    for (const std::string& band : bands)
      for (int64_t p = 0; p < 64; ++p)
        numbers.push_back(T(10 * (std::find(all.begin(), all.end(), band) - all.begin() + 1) + p + tile));
  TestTiles{.n = 2, .side = 8, .bands = bands, .metadata = metadata}.write(path, numbers, type);
}

std::vector<std::vector<uint8_t>> pictures(const std::string& path, const Composite& composite) {
  const auto set = composite_set(path, composite);
  std::vector<std::vector<uint8_t>> all;
  for (int64_t i = 0; i < set->size(); ++i) {
    const EvalImage image = set->image(i);
    CHECK((image.is_u8 && image.channels == 3 && !image.channels_first && image.height == 8));
    all.push_back(image.u8);
  }
  return all;
}

}  // namespace

TEST_CASE("composites: bands by name, stretched by the reference's percentiles, whatever the order and the type") {
  const dataset::ScratchFolder scratch;
  const std::vector<std::string> names = {"Red", "Green", "Blue", "NIR"}, others = {"NIR", "Blue", "Red", "Green"};
  write_tiles<uint8_t>(scratch / "a.safetensors", "U8", names);
  write_tiles<uint16_t>(scratch / "b.safetensors", "U16", others);
  write_tiles<float>(scratch / "c.safetensors", "F32", others);
  // Numbers that mean 2 x + 5.
  write_tiles<int16_t>(scratch / "d.safetensors", "I16", names,
                       {{"scale", "[2, 2, 2, 2]"}, {"offset", "[5, 5, 5, 5]"}});
  const dataset::TileShards reference(scratch / "a.safetensors");
  const std::vector<Composite> all = composites_of(reference, others, 1);
  REQUIRE(all.size() == 2);
  CHECK(all[0].name == "true colour");
  CHECK(all[0].bands == std::vector<std::string>{"Red", "Green", "Blue"});
  // 128 pixels: 2 % are 3 (10, 11, 11), 98 % are 126 (74, 73, 73 are above or at the end).
  CHECK(all[0].low == std::vector<double>{11, 21, 31});
  CHECK(all[0].high == std::vector<double>{73, 83, 93});
  CHECK(all[0].describe() == "true colour (Red 11 to 73, Green 21 to 83, Blue 31 to 93)");
  CHECK(all[1].bands == std::vector<std::string>{"NIR", "Red", "Green"});
  CHECK(composites_of(dataset::TileShards(scratch / "b.safetensors"), names, 1) == all);  // stored in another order
  for (const Composite& c : all) {
    const auto want = pictures(scratch / "a.safetensors", c);
    CHECK(want[0][0] == 0);
    CHECK(want[0].back() == 255);
    CHECK(want[0][3 * 32] == std::lround(255 * 31.0 / 62));
    CHECK(want[0] != want[1]);
    CHECK(pictures(scratch / "b.safetensors", c) == want);
    CHECK(pictures(scratch / "c.safetensors", c) == want);
  }
  const std::vector<Composite> scaled = composites_of(dataset::TileShards(scratch / "d.safetensors"), names, 1);
  CHECK(scaled[0].low == std::vector<double>{2 * 11 + 5, 2 * 21 + 5, 2 * 31 + 5});
  CHECK(pictures(scratch / "d.safetensors", scaled[0]) == pictures(scratch / "a.safetensors", all[0]));
  CHECK(pictures(scratch / "d.safetensors", all[0]) != pictures(scratch / "a.safetensors", all[0]));
}

TEST_CASE("composites: what both sides lack, constant bands and other scales") {
  const dataset::ScratchFolder scratch;
  write_tiles<uint8_t>(scratch / "a.safetensors", "U8", {"Red", "Green", "Blue", "NIR"});
  const dataset::TileShards a(scratch / "a.safetensors");
  CHECK(composites_of(a, {"Red", "Green", "Blue"}, 1).size() == 1);
  const auto false_colour = composites_of(a, {"NIR", "Red", "Green", "SWIR", "x"}, 1);
  REQUIRE(false_colour.size() == 1);
  CHECK(false_colour[0].name == "false colour");
  CHECK(composites_of(a, {"Red", "Green"}, 1).empty());
  const auto bytes = unstretched_composite(a);
  REQUIRE(bytes.size() == 1);
  CHECK(pictures(scratch / "a.safetensors", bytes[0])[0][1] == 20);  // green, as it is
  TestTiles{.n = 1, .side = 8, .bands = {"Red", "Green", "Blue"}}.write(scratch / "flat.safetensors",
                                                                        std::vector<uint16_t>(192, 7), "U16");
  const dataset::TileShards flat(scratch / "flat.safetensors");
  CHECK(unstretched_composite(flat).empty());
  dataset::refused([&] { composites_of(flat, {"Red", "Green", "Blue"}, 1); }, "band Red is constant");
  write_tiles<uint8_t>(scratch.at("two/a.safetensors"), "U8", {"Red", "Green", "Blue"});
  write_tiles<uint8_t>(scratch.at("two/b.safetensors"), "U8", {"Red", "Green", "Blue"}, {{"scale", "[1, 2, 1]"}});
  dataset::refused(
      [&] {
        composites_of(dataset::TileShards(scratch / "two"), {"Red", "Green", "Blue"}, 1);
      },
      "b.safetensors] band Green has another scale");
  dataset::refused([&] { composite_set(scratch / "flat.safetensors", false_colour[0]); }, "no band of this name");
}
