#include "ditrain/files/crc32.hpp"

#include <zlib.h>

namespace ditrain::files {

uint32_t crc32(uint32_t crc, const void* data, size_t bytes) {
  if (bytes == 0) return crc;  // zlib takes a null pointer, which an empty vector may have, as "start anew"
  return uint32_t(::crc32_z(crc, static_cast<const Bytef*>(data), bytes));
}

}  // namespace ditrain::files
