#include "ditrain/images/exif.hpp"

#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"

using namespace ditrain;

namespace {

// The start of a JPEG with this orientation.
std::string jpeg(int orientation, bool little) {
  const auto number = [&](uint32_t v, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += char(v >> 8 * (little ? i : bytes - 1 - i) & 0xff);
    return text;
  };
  std::string tiff = little ? "II" : "MM";
  tiff += number(42, 2) + number(8, 4) + number(2, 2);
  tiff += number(271, 2) + number(2, 2) + number(4, 4) + "abc" + std::string(1, '\0');
  tiff += number(274, 2) + number(3, 2) + number(1, 4) + number(uint32_t(orientation), 2) + std::string(2, '\0');
  const std::string segment = std::string("Exif\0\0", 6) + tiff;
  const std::string other = std::string("\xff\xe0\0\x04JF", 6);
  return "\xff\xd8" + other + "\xff\xe1" + char((segment.size() + 2) >> 8) + char((segment.size() + 2) & 0xff) +
         segment + std::string("\xff\xda\0\x02", 4);
}

}  // namespace

TEST_CASE("exif: the orientation of both byte orders, 1 where it makes no sense") {
  for (const bool little : {true, false})
    for (int orientation = 1; orientation <= 8; ++orientation)
      CHECK(images::exif_orientation(jpeg(orientation, little)) == orientation);
  CHECK(images::exif_orientation(jpeg(9, true)) == 1);
  CHECK(images::exif_orientation(jpeg(0, true)) == 1);
  CHECK(images::exif_orientation("\x89PNG") == 1);
  const std::string whole = jpeg(6, true);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const int orientation = images::exif_orientation(whole.substr(0, bytes));
    CHECK((orientation == 1 || orientation == 6));
  }
}

TEST_CASE("exif: pictures become upright") {
  // What a camera that was turned wrote of the picture 1 2 3 / 4 5 6, for each orientation.
  const std::vector<std::vector<uint8_t>> written = {{1, 2, 3, 4, 5, 6}, {3, 2, 1, 6, 5, 4}, {6, 5, 4, 3, 2, 1},
                                                     {4, 5, 6, 1, 2, 3}, {1, 4, 2, 5, 3, 6}, {3, 6, 2, 5, 1, 4},
                                                     {6, 3, 5, 2, 4, 1}, {4, 1, 5, 2, 6, 3}};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    CAPTURE(orientation);
    const bool turned = orientation >= 5;
    const images::ImageU8 image{turned ? 2 : 3, turned ? 3 : 2, 1, written[size_t(orientation - 1)]};
    const images::ImageU8 upright = images::turn_upright(image, orientation);
    CHECK((upright.width == 3 && upright.height == 2));
    CHECK(upright.pixels == std::vector<uint8_t>{1, 2, 3, 4, 5, 6});
  }
}
