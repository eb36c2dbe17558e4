// Checksums of bytes: XXH3 of 64 bits (libxxhash), faster than memory delivers what it reads. They find damage (flipped
// bits, lost blocks, mixed files), not forgery.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace ditrain::files {

/// The checksum of bytes that come in pieces: that of all of them in a row, however they were cut.
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
uint64_t checksum_of_file(const std::string& path);  ///< Errors: InputError if it cannot be read
/// Of the size of a file and of 4 KiB each at its beginning, middle and end (all of a file of up to 12 KiB): tells
/// files apart at the cost of opening them. It sees another picture in a compressed format, and may miss a change
/// inside of an uncompressed one that keeps its size. Errors: as files::fail_to_read
uint64_t checksum_of_parts(const std::string& path);
std::string to_hex(uint64_t checksum);  ///< 16 digits
/// The number of 16 such digits. Errors: InputError naming `where`
uint64_t from_hex(std::string_view digits, const std::string& where);

}  // namespace ditrain::files
