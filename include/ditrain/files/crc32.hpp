// CRC-32 of zip and PNG (reflected polynomial 0xEDB88320), as zlib computes it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ditrain::files {

/// The checksum of what `crc` covers already (0: nothing) followed by `bytes` bytes at `data`.
uint32_t crc32(uint32_t crc, const void* data, size_t bytes);

}  // namespace ditrain::files
