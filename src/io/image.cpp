#include "ditrain/io/image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "ditrain/base/error.hpp"
#include "ditrain/io/crc32.hpp"
#include "ditrain/io/files.hpp"

namespace {

// What the decoder's own assertions throw: a hostile file must not end the process.
struct DecoderFault {};

// No block of the decoder needs more than this for an image of the allowed size (16-bit RGBA and filter bytes); a PNG
// whose compressed data would inflate without end stops here.
constexpr size_t kMaxDecoderBlock = size_t{8} * ditrain::io::kMaxImagePixels + (size_t{64} << 20);

void* decoder_malloc(size_t bytes) { return bytes > kMaxDecoderBlock ? nullptr : std::malloc(bytes); }
void* decoder_realloc(void* p, size_t bytes) { return bytes > kMaxDecoderBlock ? nullptr : std::realloc(p, bytes); }

}  // namespace

#define STBI_ASSERT(x) ((x) ? void(0) : throw DecoderFault{})
#define STBI_MALLOC(size) decoder_malloc(size)
#define STBI_REALLOC(p, size) decoder_realloc(p, size)
#define STBI_FREE(p) std::free(p)
#define STBI_ONLY_JPEG
#define STBI_ONLY_PNG
#define STBI_ONLY_BMP
#define STBI_NO_STDIO
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#include <stb_image.h>

#define STBI_WRITE_NO_STDIO
#define STB_IMAGE_WRITE_STATIC
#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb_image_write.h>

namespace ditrain::io {
namespace {

const stbi_uc* as_bytes(std::string_view file) { return reinterpret_cast<const stbi_uc*>(file.data()); }

uint32_t big_endian_32(std::string_view file, size_t offset) {
  const stbi_uc* p = as_bytes(file) + offset;
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
}

uint32_t little_endian_32(std::string_view file, size_t offset) {
  uint32_t value;
  std::memcpy(&value, file.data() + offset, 4);
  return value;
}

[[noreturn]] void fail_corrupt(const std::string& path, const std::string& why) {
  throw InputError({.where = path, .what = "the image is corrupt or truncated", .got = why});
}

// The decoder ignores checksums: without this a damaged PNG would train as noise.
void check_png(const std::string& path, std::string_view file) {
  for (size_t at = 8; file.size() - at >= 12;) {
    const size_t length = big_endian_32(file, at);
    if (length > file.size() - at - 12) fail_corrupt(path, fmt::format("a PNG chunk at byte {} that is cut off", at));
    const std::string_view type = file.substr(at + 4, 4);
    const bool critical = type[0] >= 'A' && type[0] <= 'Z';
    if (critical && crc32(0, type.data(), 4 + length) != big_endian_32(file, at + 8 + length))
      fail_corrupt(path, fmt::format("a wrong PNG checksum in the chunk at byte {}", at));
    if (type == "IEND") return;
    at += 12 + length;
  }
  fail_corrupt(path, "a PNG without its end");
}

// The decoder reads zeros behind the end of the file: without this half a BMP would have black rows.
void check_bmp(const std::string& path, std::string_view file, int64_t width, int64_t height) {
  if (file.size() < 30) fail_corrupt(path, "a cut BMP header");
  const int64_t pixels_at = little_endian_32(file, 10);
  const bool os2 = little_endian_32(file, 14) == 12;
  const int64_t bits = os2 ? little_endian_32(file, 22) >> 16 : little_endian_32(file, 26) >> 16;
  const int64_t needed = pixels_at + (width * bits + 31) / 32 * 4 * height;
  if (static_cast<int64_t>(file.size()) < needed)
    fail_corrupt(path, fmt::format("{} of {} bytes", file.size(), needed));
}

void check_dimensions(const std::string& path, int64_t width, int64_t height) {
  if (width > 0 && height > 0 && width <= kMaxImagePixels / height) return;
  throw InputError({.where = path,
                    .what = "the image is empty or too large",
                    .got = fmt::format("{} x {}", width, height),
                    .expected = fmt::format("1 to {} pixels", kMaxImagePixels)});
}

// Size and format from the header alone; 3 is what every image is decoded to.
ImageU8 read_dimensions(const std::string& path, std::string_view file) {
  // Of a PNG that is far too large the decoder says no more than "unknown image type".
  if (file.starts_with("\x89PNG") && file.size() >= 24)
    check_dimensions(path, big_endian_32(file, 16), big_endian_32(file, 20));
  int width = 0, height = 0, components = 0;
  if (!stbi_info_from_memory(as_bytes(file), static_cast<int>(file.size()), &width, &height, &components)) {
    throw InputError({.where = path,
                      .what = "not an image that can be read",
                      .got = stbi_failure_reason(),
                      .expected = "JPEG, PNG or BMP"});
  }
  check_dimensions(path, width, height);
  return {width, height, 3, {}};
}

void decode(const std::string& path, std::string_view file, ImageU8& image) {
  int width = 0, height = 0, components = 0;
  stbi_uc* pixels = nullptr;
  try {
    pixels = stbi_load_from_memory(as_bytes(file), static_cast<int>(file.size()), &width, &height, &components, 3);
  } catch (const DecoderFault&) {
    fail_corrupt(path, "data that breaks the decoder's rules");
  }
  if (!pixels) fail_corrupt(path, stbi_failure_reason());
  const bool same = width == image.width && height == image.height;
  if (same) image.pixels.assign(pixels, pixels + int64_t{width} * height * 3);
  std::free(pixels);
  if (!same) fail_corrupt(path, "two different sizes");
}

void append_to_string(void* context, void* data, int size) {
  static_cast<std::string*>(context)->append(static_cast<const char*>(data), static_cast<size_t>(size));
}

void check_pixels(const ImageU8& image) {
  DITRAIN_CHECK(image.channels == 1 || image.channels == 3, "channels must be 1 or 3");
  DITRAIN_CHECK(image.width > 0 && image.height > 0 && image.width <= kMaxImagePixels / image.height, "image size");
  DITRAIN_CHECK(static_cast<int64_t>(image.pixels.size()) == image.width * image.height * image.channels, "pixels");
}

}  // namespace

ImageU8 read_image(const std::string& path) {
  const std::string file = read_text_file(path, kMaxImageFileBytes);
  ImageU8 image = read_dimensions(path, file);
  if (file.starts_with("\x89PNG")) check_png(path, file);
  if (file.starts_with("BM")) check_bmp(path, file, image.width, image.height);
  decode(path, file, image);
  return image;
}

void write_png(const std::string& path, const ImageU8& image) {
  check_pixels(image);
  const int width = static_cast<int>(image.width), channels = static_cast<int>(image.channels);
  std::string png;
  const int done = stbi_write_png_to_func(append_to_string, &png, width, static_cast<int>(image.height), channels,
                                          image.pixels.data(), width * channels);
  if (!done) throw RunError({.where = path, .what = "not enough memory to encode the PNG"});
  write_file_atomically(path, png);
}

ImageU8 make_grid(const std::vector<ImageU8>& images, int64_t columns, int64_t pad) {
  DITRAIN_CHECK(!images.empty() && columns > 0 && pad >= 0, "a grid needs images and columns");
  const ImageU8& first = images.front();
  const auto count = static_cast<int64_t>(images.size());
  columns = std::min(columns, count);
  const int64_t rows = (count + columns - 1) / columns;
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

}  // namespace ditrain::io
