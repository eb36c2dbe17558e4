// For tests: zip archives made by hand, right or wrong.
#pragma once
#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/files/crc32.hpp"

namespace ditrain::test {

inline std::string field16(uint64_t v) { return {char(v), char(v >> 8)}; }
inline std::string field32(uint64_t v) { return field16(v) + field16(v >> 16); }
inline std::string field64(uint64_t v) { return field32(v) + field32(v >> 32); }

/// The data of a raw deflate stream.
inline std::string deflated(const std::string& bytes) {
  z_stream z{};
  deflateInit2(&z, 9, Z_DEFLATED, -MAX_WBITS, 9, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, bytes.size()) + 16, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data())), z.avail_in = uInt(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data()), z.avail_out = uInt(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

/// An entry as it will be written; change what should be wrong.
struct ZipPart {
  std::string name, packed;
  uint16_t method = 0, flags = 0;
  uint32_t crc = 0;
  uint64_t bytes = 0;
  int64_t offset = -1;  ///< of the local header, if the directory shall say another one
};
inline ZipPart stored(const std::string& name, const std::string& bytes) {
  return {name, bytes, 0, 0, files::crc32(0, bytes.data(), bytes.size()), bytes.size()};
}
inline ZipPart packed(const std::string& name, const std::string& bytes) {
  return {name, deflated(bytes), 8, 0, files::crc32(0, bytes.data(), bytes.size()), bytes.size()};
}

inline std::string make_zip(const std::vector<ZipPart>& parts) {
  std::string zip, directory;
  for (const ZipPart& p : parts) {
    const std::string common = field16(20) + field16(p.flags) + field16(p.method) + field32(0) + field32(p.crc) +
                               field32(p.packed.size()) + field32(p.bytes) + field16(p.name.size()) + field16(0);
    const uint64_t offset = p.offset < 0 ? zip.size() : uint64_t(p.offset);
    directory += field32(0x02014b50) + field16(20) + common + field16(0) + field16(0) + field16(0) + field32(0) +
                 field32(offset) + p.name;
    zip += field32(0x04034b50) + common + p.name + p.packed;
  }
  const size_t at = zip.size();
  return zip + directory + field32(0x06054b50) + field32(0) + field16(parts.size()) + field16(parts.size()) +
         field32(directory.size()) + field32(at) + field16(0);
}

}  // namespace ditrain::test
