#include "ditrain/images/exif.hpp"

#include <cstdint>

#include "ditrain/base/error.hpp"

namespace ditrain::images {
namespace {

// Numbers of a piece of a file; 0 beyond its end.
struct Bytes {
  std::string_view text;
  bool little = true;
  uint32_t at(size_t i) const { return i < text.size() ? uint32_t(uint8_t(text[i])) : 0; }
  uint32_t u16(size_t i) const { return little ? at(i) | at(i + 1) << 8 : at(i) << 8 | at(i + 1); }
  uint32_t u32(size_t i) const { return little ? u16(i) | u16(i + 2) << 16 : u16(i) << 16 | u16(i + 2); }
};

// The orientation in the TIFF inside the segment.
int orientation_of_tiff(std::string_view tiff) {
  constexpr uint32_t kOrientation = 274, kShort = 3;
  const bool little = tiff.starts_with("II");
  if (!little && !tiff.starts_with("MM")) return 1;
  const Bytes bytes{tiff, little};
  const size_t directory = bytes.u32(4);
  if (directory >= tiff.size()) return 1;
  const uint32_t entries = bytes.u16(directory);
  for (uint32_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + size_t(12) * i;
    if (entry + 12 > tiff.size()) return 1;
    if (bytes.u16(entry) != kOrientation || bytes.u16(entry + 2) != kShort) continue;
    const uint32_t value = bytes.u16(entry + 8);
    return value >= 1 && value <= 8 ? int(value) : 1;
  }
  return 1;
}

}  // namespace

int exif_orientation(std::string_view jpeg) {
  if (!jpeg.starts_with("\xff\xd8")) return 1;
  const Bytes bytes{jpeg, false};
  constexpr std::string_view kExif("Exif\0\0", 6);
  for (size_t i = 2; i + 4 <= jpeg.size();) {
    const uint32_t marker = bytes.u16(i), length = bytes.u16(i + 2);
    if (marker < 0xffc0 || marker == 0xffda || length < 2) return 1;  // the picture begins, or no JPEG
    const std::string_view segment = jpeg.substr(i + 4, length - 2);
    if (marker == 0xffe1 && segment.starts_with(kExif)) return orientation_of_tiff(segment.substr(kExif.size()));
    i += 2 + length;
  }
  return 1;
}

ImageU8 turn_upright(const ImageU8& image, int orientation) {
  DITRAIN_CHECK(orientation >= 1 && orientation <= 8, "an orientation");
  if (orientation == 1) return image;
  const bool turned = orientation >= 5;
  ImageU8 out{turned ? image.height : image.width, turned ? image.width : image.height, image.channels, {}};
  out.pixels.resize(image.pixels.size());
  // Where the upper left corner of the file's rows and columns is in the upright picture.
  const bool right = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
  const bool bottom = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
  for (int64_t y = 0; y < out.height; ++y)
    for (int64_t x = 0; x < out.width; ++x) {
      const int64_t u = right ? out.width - 1 - x : x, v = bottom ? out.height - 1 - y : y;
      const int64_t row = turned ? u : v, column = turned ? v : u;
      for (int64_t c = 0; c < image.channels; ++c)
        out.pixels[size_t((y * out.width + x) * image.channels + c)] =
            image.pixels[size_t((row * image.width + column) * image.channels + c)];
    }
  return out;
}

}  // namespace ditrain::images
