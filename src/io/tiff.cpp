#include "ditrain/io/tiff.hpp"

#include <bit>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/io/files.hpp"

namespace ditrain::io {
namespace {

constexpr uint16_t kShort = 3, kLong = 4;  // field types of TIFF 6.0, section 2

void put16(std::string& s, uint32_t v) {
  s.push_back(char(v & 0xff));
  s.push_back(char(v >> 8 & 0xff));
}
void put32(std::string& s, uint32_t v) {
  put16(s, v);
  put16(s, v >> 16);
}

struct Entry {
  uint16_t tag, type;
  std::vector<uint32_t> values;
};

// Value of an entry: in place if it fits into four bytes, else appended to `arrays`, which starts at file offset `at`.
void put_entry(std::string& directory, const Entry& entry, std::string& arrays, size_t at) {
  put16(directory, entry.tag);
  put16(directory, entry.type);
  put32(directory, uint32_t(entry.values.size()));
  std::string bytes;
  for (const uint32_t v : entry.values) entry.type == kShort ? put16(bytes, v) : put32(bytes, v);
  if (bytes.size() > 4) {
    put32(directory, uint32_t(at + arrays.size()));
    arrays += bytes;  // an even number of bytes, so the next array starts on a word
  } else {
    bytes.resize(4, '\0');
    directory += bytes;
  }
}

}  // namespace

void write_tiff_f32(const std::string& path, const float* chw, int64_t channels, int64_t height, int64_t width) {
  const int64_t pixels = height * width, data_bytes = pixels * channels * 4;
  DITRAIN_CHECK(channels >= 1 && channels < 65536 && pixels >= 1 && data_bytes < (int64_t{1} << 31), "a size for TIFF");
  const auto bands = size_t(channels);
  const uint32_t strip_at = 8;
  std::vector<Entry> entries = {{256, kLong, {uint32_t(width)}},
                                {257, kLong, {uint32_t(height)}},
                                {258, kShort, std::vector<uint32_t>(bands, 32)},  // bits per sample
                                {259, kShort, {1}},                               // no compression
                                {262, kShort, {1}},                               // black is zero
                                {273, kLong, {strip_at}},
                                {277, kShort, {uint32_t(channels)}},
                                {278, kLong, {uint32_t(height)}},
                                {279, kLong, {uint32_t(data_bytes)}},
                                {284, kShort, {1}}};                                     // pixel-interleaved
  if (bands > 1) entries.push_back({338, kShort, std::vector<uint32_t>(bands - 1, 0)});  // bands beyond grey
  entries.push_back({339, kShort, std::vector<uint32_t>(bands, 3)});                     // IEEE floating point

  std::string file = "II";
  put16(file, 42);
  put32(file, uint32_t(strip_at + data_bytes));  // of the directory, behind the strip
  file.reserve(size_t(data_bytes) + 1024);
  for (int64_t p = 0; p < pixels; ++p)
    for (int64_t c = 0; c < channels; ++c) put32(file, std::bit_cast<uint32_t>(chw[c * pixels + p]));
  std::string directory, arrays;
  const size_t arrays_at = file.size() + 2 + 12 * entries.size() + 4;
  put16(directory, uint32_t(entries.size()));
  for (const Entry& entry : entries) put_entry(directory, entry, arrays, arrays_at);
  put32(directory, 0);  // no further directory
  write_file_atomically(path, file + directory + arrays);
}

}  // namespace ditrain::io
