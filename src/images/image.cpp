// Images on their way out: PNG, grids, samples to pixels. Reading is in image_read.cpp, resampling in image_resize.cpp.
#include "ditrain/images/image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "ditrain/base/error.hpp"
#include "ditrain/files/files.hpp"

#define STBI_WRITE_NO_STDIO
#define STB_IMAGE_WRITE_STATIC
#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb_image_write.h>

namespace ditrain::images {
namespace {

void append_to_string(void* context, void* data, int size) {
  static_cast<std::string*>(context)->append(static_cast<const char*>(data), static_cast<size_t>(size));
}

void check_pixels(const ImageU8& image) {
  DITRAIN_CHECK(image.channels == 1 || image.channels == 3, "channels must be 1 or 3");
  DITRAIN_CHECK(image.width > 0 && image.height > 0, "image size");
  DITRAIN_CHECK(static_cast<int64_t>(image.pixels.size()) == image.width * image.height * image.channels, "pixels");
}

}  // namespace

void write_png(const std::string& path, const ImageU8& image) {
  check_pixels(image);
  if (image.width > kMaxImagePixels / image.height)
    throw RunError({.where = path,
                    .what = "a picture that would be too large for the programs that read it, this one among them",
                    .got = fmt::format("{} x {} pixels", image.width, image.height),
                    .expected = fmt::format("at most {} pixels", kMaxImagePixels)});
  const int width = static_cast<int>(image.width), channels = static_cast<int>(image.channels);
  std::string png;
  const int done = stbi_write_png_to_func(append_to_string, &png, width, static_cast<int>(image.height), channels,
                                          image.pixels.data(), width * channels);
  if (!done) throw RunError({.where = path, .what = "not enough memory to encode the PNG"});
  files::write_file_atomically(path, png);
}

ImageU8 make_grid(const std::vector<ImageU8>& images, int64_t columns, int64_t pad) {
  DITRAIN_CHECK(!images.empty() && columns > 0 && pad >= 0, "a grid needs images and columns");
  const ImageU8& first = images.front();
  const auto all = static_cast<int64_t>(images.size());
  columns = std::clamp<int64_t>((kMaxImagePixels / (first.height + 2 * pad) - pad) / (first.width + pad), 1,
                                std::min(columns, all));
  const int64_t fitting = (kMaxImagePixels / (columns * (first.width + pad) + pad) - pad) / (first.height + pad);
  const int64_t rows = std::clamp<int64_t>(fitting, 1, (all + columns - 1) / columns);
  const int64_t count = std::min(all, rows * columns);
  ImageU8 grid{columns * (first.width + pad) + pad, rows * (first.height + pad) + pad, first.channels, {}};
  grid.pixels.assign(static_cast<size_t>(grid.width * grid.height * grid.channels), 0);
  for (int64_t i = 0; i < count; ++i) {
    const ImageU8& image = images[static_cast<size_t>(i)];
    check_pixels(image);
    DITRAIN_CHECK(image.width == first.width && image.height == first.height && image.channels == first.channels,
                  "images of a grid differ in size");
    const int64_t left = pad + i % columns * (first.width + pad), top = pad + i / columns * (first.height + pad);
    const int64_t row_bytes = image.width * image.channels;
    for (int64_t y = 0; y < image.height; ++y)
      std::copy_n(image.pixels.data() + y * row_bytes, row_bytes,
                  grid.pixels.data() + ((top + y) * grid.width + left) * grid.channels);
  }
  return grid;
}

uint8_t to_u8(float x) {
  const float v = 127.5f * x + 128.0f;
  if (!(v > 0.0f)) return 0;  // NaN too
  return v >= 255.0f ? 255 : static_cast<uint8_t>(v);
}

ImageU8 to_image(const float* chw, int64_t channels, int64_t height, int64_t width) {
  DITRAIN_CHECK(channels > 0 && height > 0 && width > 0, "empty image");
  const int64_t shown = channels >= 3 ? 3 : 1, plane = height * width;
  ImageU8 image{width, height, shown, {}};
  image.pixels.reserve(static_cast<size_t>(plane * shown));
  for (int64_t i = 0; i < plane; ++i)
    for (int64_t c = 0; c < shown; ++c) image.pixels.push_back(to_u8(chw[c * plane + i]));
  return image;
}

}  // namespace ditrain::images
