#include "ditrain/weights/npz.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/files/crc32.hpp"

namespace ditrain::weights {
namespace {

constexpr uint64_t kZip32Limit = 0xFFFFFFFF;  // this value itself means "see the zip64 field"
constexpr uint64_t kCrcOffset = 14;           // of the crc inside a local header

// A record of little-endian fields.
class Record {
 public:
  template <class T>
  Record& put(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) text_.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
    return *this;
  }
  Record& u16(uint16_t v) { return put(v); }
  Record& u32(uint32_t v) { return put(v); }
  Record& u64(uint64_t v) { return put(v); }
  Record& bytes(const std::string& v) {
    text_ += v;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

bool needs_zip64(uint64_t bytes) { return bytes >= kZip32Limit; }

// The zip64 extra field with the sizes that do not fit the 32-bit fields.
std::string sizes_field(uint64_t bytes) {
  return needs_zip64(bytes) ? Record().u16(1).u16(16).u64(bytes).u64(bytes).text() : "";
}

// The fields that a local header and a directory entry share: version needed ... length of the extra field.
// Flags 0, method 0 (stored), time 1980-01-01 so that the same array makes the same file.
std::string common_fields(const std::string& member, uint64_t bytes, uint32_t crc) {
  const auto size = static_cast<uint32_t>(std::min(bytes, kZip32Limit));
  return Record()
      .u16(needs_zip64(bytes) ? 45 : 20)
      .u16(0)
      .u16(0)
      .u16(0)
      .u16(33)
      .u32(crc)
      .u32(size)
      .u32(size)
      .u16(static_cast<uint16_t>(member.size()))
      .u16(static_cast<uint16_t>(sizes_field(bytes).size()))
      .text();
}

// The .npy header, format version 1.0: padded with spaces so that the data starts at a multiple of 64.
std::string npy_header(const char* descr, const std::vector<int64_t>& shape) {
  std::string dimensions;
  for (const int64_t d : shape) dimensions += fmt::format("{}, ", d);
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, dimensions);
  constexpr size_t kPreamble = 10;
  text.append(63 - (kPreamble + text.size()) % 64, ' ');
  text.push_back('\n');
  DITRAIN_CHECK(text.size() <= 0xFFFF, "too many dimensions");
  return Record()
      .bytes("\x93NUMPY")
      .put(uint8_t{1})
      .put(uint8_t{0})
      .u16(static_cast<uint16_t>(text.size()))
      .bytes(text)
      .text();
}

uint64_t product(const std::vector<int64_t>& shape) {
  uint64_t n = 1;
  for (const int64_t d : shape)
    DITRAIN_CHECK(d >= 0 && !__builtin_mul_overflow(n, static_cast<uint64_t>(d), &n), "impossible shape");
  return n;
}

// Made by: version 4.5, unix (3). Then comment length, disk, internal attributes, external ones (-rw-r--r--), offset.
std::string directory_entry(const std::string& member, uint64_t member_bytes, uint32_t crc, uint32_t offset) {
  return Record()
      .u32(0x02014b50)
      .u16(3 << 8 | 45)
      .bytes(common_fields(member, member_bytes, crc))
      .u16(0)
      .u16(0)
      .u16(0)
      .u32(0100644u << 16)
      .u32(offset)
      .bytes(member)
      .bytes(sizes_field(member_bytes))
      .text();
}

}  // namespace

std::string zip_local_header(const std::string& member, uint64_t member_bytes, uint32_t crc) {
  return Record()
      .u32(0x04034b50)
      .bytes(common_fields(member, member_bytes, crc))
      .bytes(member)
      .bytes(sizes_field(member_bytes))
      .text();
}

std::string zip_directory(const std::string& member, uint64_t member_bytes, uint32_t crc) {
  const uint64_t offset = zip_local_header(member, member_bytes, crc).size() + member_bytes;
  const std::string entry = directory_entry(member, member_bytes, crc, 0);
  Record end;
  end.bytes(entry);
  if (needs_zip64(offset)) {
    end.u32(0x06064b50).u64(44).u16(3 << 8 | 45).u16(45).u32(0).u32(0).u64(1).u64(1).u64(entry.size()).u64(offset);
    end.u32(0x07064b50).u32(0).u64(offset + entry.size()).u32(1);  // where the record above is
  }
  end.u32(0x06054b50).u16(0).u16(0).u16(1).u16(1).u32(static_cast<uint32_t>(entry.size()));
  return end.u32(static_cast<uint32_t>(std::min(offset, kZip32Limit))).u16(0).text();
}

NpzU8Writer::NpzU8Writer(const std::string& path, const std::string& array_name, const std::vector<int64_t>& shape)
    : file_(path), member_(array_name + ".npy"), remaining_bytes_(product(shape)) {
  DITRAIN_CHECK(member_.size() < 0x8000, "array name too long");
  const std::string npy = npy_header("|u1", shape);
  member_bytes_ = npy.size() + remaining_bytes_;
  crc_ = files::crc32(0, npy.data(), npy.size());
  const std::string head = zip_local_header(member_, member_bytes_, 0) + npy;  // the crc follows in finish()
  file_.write(head.data(), head.size());
}

void NpzU8Writer::append(const uint8_t* data, size_t bytes) {
  DITRAIN_CHECK(bytes <= remaining_bytes_, "more data than the shape holds");
  file_.write(data, bytes);
  crc_ = files::crc32(crc_, data, bytes);
  remaining_bytes_ -= bytes;
}

void NpzU8Writer::finish() {
  DITRAIN_CHECK(remaining_bytes_ == 0, "less data than the shape holds");
  const std::string crc = Record().u32(crc_).text();
  file_.overwrite(kCrcOffset, crc.data(), crc.size());
  const std::string directory = zip_directory(member_, member_bytes_, crc_);
  file_.write(directory.data(), directory.size());
  file_.finish();
}

void write_npz_f64(const std::string& path, const std::vector<NpyToWrite>& arrays) {
  std::string zip, directory;
  for (const NpyToWrite& array : arrays) {
    const std::string member = array.name + ".npy";
    const bool is_text = array.data == nullptr;
    const uint64_t data_bytes = product(array.shape) * (is_text ? 1 : sizeof(double));
    std::string npy = npy_header(is_text ? "|u1" : "<f8", array.shape);
    DITRAIN_CHECK(data_bytes < kZip32Limit - zip.size() - npy.size() - 1024, "arrays of 4 GiB or more");
    DITRAIN_CHECK(!is_text || data_bytes == array.text.size(), "a text of another size");
    npy.append(is_text ? array.text.data() : reinterpret_cast<const char*>(array.data), data_bytes);
    const uint32_t crc = files::crc32(0, npy.data(), npy.size());
    directory += directory_entry(member, npy.size(), crc, static_cast<uint32_t>(zip.size()));
    zip += zip_local_header(member, npy.size(), crc) + npy;
  }
  const auto count = static_cast<uint16_t>(arrays.size());
  const auto offset = static_cast<uint32_t>(zip.size()), bytes = static_cast<uint32_t>(directory.size());
  zip += directory + Record().u32(0x06054b50).u16(0).u16(0).u16(count).u16(count).u32(bytes).u32(offset).u16(0).text();
  files::write_file_atomically(path, zip);
}

}  // namespace ditrain::weights
