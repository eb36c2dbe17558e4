// SHA-256 (FIPS 180-4), by which published weight files and references are identified. To detect accidental damage,
// files/checksum.hpp is many times as fast.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ditrain::files {

/// Computes a digest incrementally: the result is that of all bytes together, however they were split.
class Sha256 {
 public:
  void add(const void* data, size_t bytes);
  void add(std::string_view data) { add(data.data(), data.size()); }
  /// 64 hexadecimal digits. Nothing may be added afterwards.
  std::string hex();

 private:
  void compress(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> rest_{};  // what does not fill a block yet
  size_t rest_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

std::string sha256_of(std::string_view bytes);
/// The SHA-256 of a whole file. Errors: as MappedFile
std::string sha256_of_file(const std::string& path);

}  // namespace ditrain::files
