#include "jp2_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>

#include "ditrain/base/error.hpp"

namespace ditrain::images {
namespace {

constexpr uint64_t kSignatureBox = 0x6a502020, kCodestreamBox = 0x6a703263;
constexpr uint64_t kStart = 0xff4f, kSizes = 0xff51, kCoding = 0xff52, kStartOfTile = 0xff90, kEnd = 0xffd9;
// A decoder sets up a tile as a whole, and spends some 400 bytes on each of its code blocks.
constexpr uint64_t kMaxTileBytes = uint64_t{1} << 30, kMaxCodeBlocks = uint64_t{1} << 22;

class Checker {
 public:
  explicit Checker(const std::string& path) : path_(path), file_(path, std::ios::binary) {
    file_.seekg(0, std::ios::end);
    size_ = file_ ? uint64_t(file_.tellg()) : 0;
  }

  void run() {
    if (size_ < 12) return;
    if (number(0, 2) == kStart) return check_codestream(0, size_);
    if (number(4, 4) != kSignatureBox) return;
    for (uint64_t at = 0; at < size_;) {
      if (size_ - at < 8) broken(at, "a box");
      const uint64_t type = number(at + 4, 4);
      uint64_t length = number(at, 4), header = 8;
      if (length == 1 && size_ - at >= 16) length = number(at + 8, 8), header = 16;
      if (length == 0) length = size_ - at;  // the last box
      if (length < header || length > size_ - at) broken(at, "a box");
      if (type == kCodestreamBox) check_codestream(at + header, at + length);
      at += length;
    }
  }

 private:
  [[noreturn]] void broken(uint64_t at, const char* what) const {
    throw InputError({.where = path_,
                      .what = std::string("the JPEG 2000 file is damaged or truncated: ") + what +
                              " reaches beyond the end, at byte " + std::to_string(at),
                      .hint = "moving the file away, or fetching it again"});
  }

  // Big endian; 0 beyond the end.
  uint64_t number(uint64_t at, int bytes) {
    std::array<char, 8> buffer{};
    file_.clear();
    file_.seekg(std::streamoff(at));
    file_.read(buffer.data(), bytes);
    if (file_.gcount() != bytes) return 0;
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | uint8_t(buffer[size_t(i)]);
    return value;
  }

  // SIZ at `at`: x and y of the image's end and begin, of a tile's size and begin, then the components.
  void check_tile(uint64_t at) {
    const uint64_t width = number(at + 6, 4) - std::min(number(at + 6, 4), number(at + 14, 4));
    const uint64_t height = number(at + 10, 4) - std::min(number(at + 10, 4), number(at + 18, 4));
    const uint64_t tile_width = std::min(number(at + 22, 4), width), tile_height = std::min(number(at + 26, 4), height);
    const uint64_t components = number(at + 38, 2), bytes = ((number(at + 40, 1) & 0x7f) + 8) / 8;
    tile_samples_ = tile_width * tile_height * components;
    if (tile_height == 0 || components == 0 || tile_width <= kMaxTileBytes / tile_height / components / bytes) return;
    throw InputError({.where = path_,
                      .what = "a tile of this raster is too large to be decoded as a whole",
                      .got = fmt::format("{} x {} pixels of {} components", tile_width, tile_height, components),
                      .expected = fmt::format("at most {} bytes", kMaxTileBytes)});
  }

  // COD at `at`: sides of code blocks are powers of two from 4 on.
  void check_blocks(uint64_t at) {
    const uint64_t blocks = tile_samples_ >> ((number(at + 10, 1) & 15) + (number(at + 11, 1) & 15) + 4);
    if (blocks <= kMaxCodeBlocks) return;
    throw InputError({.where = path_,
                      .what = "a tile of this raster has too many code blocks",
                      .got = std::to_string(blocks),
                      .expected = fmt::format("at most {}", kMaxCodeBlocks)});
  }

  void check_codestream(uint64_t begin, uint64_t end) {
    if (end - begin < 4 || number(begin, 2) != kStart) broken(begin, "the codestream");
    uint64_t at = begin + 2;
    for (uint64_t marker; (marker = number(at, 2)) != kEnd;) {
      if (end - at < 4 || marker < 0xff00) broken(at, "a marker");
      if (marker == kSizes) check_tile(at);
      if (marker == kCoding) check_blocks(at);
      uint64_t length = number(at + 2, 2) + 2;
      if (marker == kStartOfTile) {
        if (end - at < 12) broken(at, "a tile part");
        length = number(at + 6, 4);
        if (length == 0) return;  // the last part, up to the end
        if (length < 14) broken(at, "a tile part");
      } else if (length < 4) {
        broken(at, "a marker");
      }
      if (length > end - at) broken(at, "a tile part or marker");
      at += length;
      if (at == end) return;  // without the end marker, which decoders do not need
      if (end - at < 2) broken(at, "a marker");
    }
  }

  std::string path_;
  std::ifstream file_;
  uint64_t size_ = 0, tile_samples_ = 0;
};

}  // namespace

void check_jp2(const std::string& path) { Checker(path).run(); }

}  // namespace ditrain::images
