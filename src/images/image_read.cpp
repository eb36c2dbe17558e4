// Reading images; the content tells the format, never the name. JPEG goes to libjpeg-turbo (image_jpeg.cpp). The
// decoder of PNG and BMP (stb_image) trusts its input more than files from outside deserve, so this file checks what it
// does not (PNG checksums, BMP length), gives it memory that is zeroed, capped and taken back, and turns its assertions
// into errors.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "ditrain/base/error.hpp"
#include "ditrain/files/crc32.hpp"
#include "ditrain/files/files.hpp"
#include "ditrain/images/image.hpp"
#include "image_jpeg.hpp"

namespace {

// What the decoder's own assertions throw: a hostile file must not end the process.
struct DecoderFault {};

// The blocks that the decoder holds in this thread; those it leaves behind (assertions) go at the end of the scope.
class DecoderMemory {
 public:
  DecoderMemory() { current_ = this; }
  ~DecoderMemory() {
    current_ = nullptr;
    for (const auto& [block, bytes] : blocks_) std::free(block);
  }
  DecoderMemory(const DecoderMemory&) = delete;
  DecoderMemory& operator=(const DecoderMemory&) = delete;
  static DecoderMemory& current() { return *current_; }

  // What an honest file of this size takes at most: a 16-bit RGBA PNG has 8 bytes per pixel as it is compressed, and as
  // it is inflated, each in buffers that double.
  void expect(int64_t pixels, size_t file_bytes) {
    most_ = std::min(kMaxBytes, 64 * size_t(pixels) + 4 * file_bytes + (size_t{1} << 20));
  }
  bool refused() const { return refused_; }

  // Zeroed: a damaged file can make the decoder use tables and planes it never filled.
  void* allocate(size_t bytes) {
    if (bytes > most_ - total_) {
      refused_ = true;
      return nullptr;
    }
    void* block = std::calloc(1, bytes);
    if (block) add(block, bytes);
    return block;
  }
  void* reallocate(void* old, size_t bytes) {
    const size_t old_bytes = old ? blocks_.at(old) : 0;
    void* block = allocate(bytes);
    if (!block) return nullptr;
    if (old) std::memcpy(block, old, std::min(bytes, old_bytes));
    release(old);
    return block;
  }
  void release(void* block) {
    if (!block) return;
    total_ -= blocks_.at(block);
    blocks_.erase(block);
    std::free(block);
  }

 private:
  // Of images of any size; about 24 bytes per pixel of the largest.
  static constexpr size_t kMaxBytes = size_t{24} * ditrain::images::kMaxImagePixels + (size_t{64} << 20);

  void add(void* block, size_t bytes) {
    blocks_.emplace(block, bytes);
    total_ += bytes;
  }

  static thread_local DecoderMemory* current_;
  std::unordered_map<void*, size_t> blocks_;
  size_t total_ = 0, most_ = kMaxBytes;
  bool refused_ = false;
};

thread_local DecoderMemory* DecoderMemory::current_ = nullptr;

}  // namespace

#define STBI_ASSERT(x) ((x) ? void(0) : throw DecoderFault{})
#define STBI_MALLOC(size) DecoderMemory::current().allocate(size)
#define STBI_REALLOC(p, size) DecoderMemory::current().reallocate(p, size)
#define STBI_FREE(p) DecoderMemory::current().release(p)
#define STBI_ONLY_PNG
#define STBI_ONLY_BMP
#define STBI_NO_STDIO
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#include <stb_image.h>

namespace ditrain::images {
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
    if (critical && files::crc32(0, type.data(), 4 + length) != big_endian_32(file, at + 8 + length))
      fail_corrupt(path, fmt::format("a wrong PNG checksum in the chunk at byte {}", at));
    if (type == "IEND") return;
    at += 12 + length;
  }
  fail_corrupt(path, "a PNG without its end");
}

// One DHT segment holds tables of 17 bytes and as many symbols as those count, at most 256.
void check_jpeg_tables(const std::string& path, std::string_view tables) {
  while (!tables.empty()) {
    size_t symbols = 0;
    for (size_t i = 1; i <= 16 && i < tables.size(); ++i) symbols += static_cast<uint8_t>(tables[i]);
    if (tables.size() < 17 || symbols > 256 || symbols > tables.size() - 17) fail_corrupt(path, "a bad Huffman table");
    tables.remove_prefix(17 + symbols);
  }
}

// Follows the markers, between segments and inside entropy-coded data, up to the end of the image: what is missing or
// cannot be is found before the decoder makes grey pixels of it.
JpegMarkers check_jpeg(const std::string& path, std::string_view file) {
  constexpr int kMaxScans = 256;  // real progressive files have about ten; each costs a pass over the image
  JpegMarkers found;
  for (size_t at = 0; at < file.size();) {
    if (file[at++] != '\xff') continue;
    while (at < file.size() && file[at] == '\xff') ++at;
    if (at == file.size()) break;
    const auto marker = static_cast<uint8_t>(file[at++]);
    if (marker == 0xD9) {
      found.has_end = true;
      return found;
    }
    // No length follows a stuffed 0xff, TEM, a restart and the start of the image.
    if (marker <= 1 || (marker >= 0xD0 && marker <= 0xD8)) continue;
    const size_t length = file.size() - at < 2 ? 0 : as_bytes(file)[at] << 8 | as_bytes(file)[at + 1];
    if (length < 2 || length > file.size() - at) fail_corrupt(path, fmt::format("a bad JPEG segment at byte {}", at));
    if (marker == 0xC4) check_jpeg_tables(path, file.substr(at + 2, length - 2));
    if (marker == 0xDA && ++found.num_scans > kMaxScans) fail_corrupt(path, "a JPEG of too many scans");
    at += length;
  }
  return found;
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

// Size and format from the header alone; 3 is what every image is decoded to.
ImageU8 read_dimensions(const std::string& path, std::string_view file) {
  // For a PNG that is far too large the decoder says no more than "unknown image type".
  if (file.starts_with("\x89PNG") && file.size() >= 24)
    check_image_size(path, big_endian_32(file, 16), big_endian_32(file, 20));
  int width = 0, height = 0, components = 0;
  if (!stbi_info_from_memory(as_bytes(file), static_cast<int>(file.size()), &width, &height, &components)) {
    throw InputError({.where = path,
                      .what = "not an image that can be read",
                      .got = stbi_failure_reason(),
                      .expected = "JPEG, PNG or BMP"});
  }
  // The height of a BMP whose first row is the upper one is negative.
  const int64_t rows = file.starts_with("BM") ? std::abs(int64_t{height}) : height;
  check_image_size(path, width, rows);
  return {width, rows, 3, {}};
}

void decode(const std::string& path, std::string_view file, const DecoderMemory& memory, ImageU8& image) {
  int width = 0, height = 0, components = 0;
  stbi_uc* pixels = nullptr;
  try {
    pixels = stbi_load_from_memory(as_bytes(file), static_cast<int>(file.size()), &width, &height, &components, 3);
  } catch (const DecoderFault&) {
    fail_corrupt(path, "data that breaks the decoder's rules");
  }
  if (!pixels)
    fail_corrupt(path, memory.refused() ? "data that inflate to more than an image of its size can have"
                                        : stbi_failure_reason());
  if (width != image.width || height != image.height) fail_corrupt(path, "two different sizes");
  image.pixels.assign(pixels, pixels + int64_t{width} * height * 3);
}

}  // namespace

void check_image_size(const std::string& path, int64_t width, int64_t height) {
  if (width > 0 && height > 0 && width <= kMaxImagePixels / height) return;
  throw InputError({.where = path,
                    .what = "the image is empty or too large",
                    .got = fmt::format("{} x {}", width, height),
                    .expected = fmt::format("1 to {} pixels", kMaxImagePixels)});
}

ImageU8 read_image(const std::string& path) {
  return decode_image(path, files::read_text_file(path, kMaxImageFileBytes));
}

ImageU8 decode_image(const std::string& path, std::string_view file) {
  if (file.starts_with("\xff\xd8")) return decode_jpeg(path, file, check_jpeg(path, file));
  DecoderMemory memory;
  ImageU8 image = read_dimensions(path, file);
  memory.expect(image.width * image.height, file.size());
  if (file.starts_with("\x89PNG")) check_png(path, file);
  if (file.starts_with("BM")) check_bmp(path, file, image.width, image.height);
  decode(path, file, memory, image);
  return image;
}

}  // namespace ditrain::images
