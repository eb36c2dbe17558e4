// Checksums of bytes: 64-bit XXH3 (libxxhash), faster than memory bandwidth. They detect damage (flipped bits, lost
// blocks, mixed files), not forgery.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace ditrain::files {

/// Computes a checksum incrementally: the result is that of all bytes together, however they were split.
class Checksum {
 public:
  Checksum();
  void add(const void* data, size_t bytes);
  uint64_t value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

uint64_t checksum_of(std::string_view bytes);
uint64_t checksum_of_file(const std::string& path);  ///< Errors: as files::fail_to_read
/// Checksum of the size of a file and of 4 KiB each at its beginning, middle and end (all of a file of up to 12 KiB),
/// for the cost of opening the file. It detects another picture in a compressed format, but may miss a change inside an
/// uncompressed file that keeps its size.
/// Errors: as files::fail_to_read
uint64_t checksum_of_parts(const std::string& path);
std::string to_hex(uint64_t checksum);  ///< 16 digits
/// The checksum of 16 hexadecimal digits. Errors: InputError naming `where`
uint64_t from_hex(std::string_view digits, const std::string& where);

}  // namespace ditrain::files
