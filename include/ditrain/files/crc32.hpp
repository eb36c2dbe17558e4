// CRC-32 of zip and PNG (reflected polynomial 0xEDB88320), as zlib computes it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ditrain::files {

/// Continues a checksum: `crc` covers the bytes so far (0: none), `bytes` bytes at `data` follow.
uint32_t crc32(uint32_t crc, const void* data, size_t bytes);

}  // namespace ditrain::files
