// Little-endian fields of bytes from outside, read one after the other: what is not there is an InputError.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "ditrain/base/error.hpp"

namespace ditrain::weights {

class ByteReader {
 public:
  /// `where` begins the errors, `what` names the bytes in them ("zip directory"). Both must live as long as the reader.
  ByteReader(const std::string& where, const char* what, std::string_view bytes)
      : where_(where), what_(what), bytes_(bytes) {}

  size_t at() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }

  std::string_view take(uint64_t n) {
    if (n > left()) {
      throw InputError({.where = where_,
                        .what = fmt::format("the {} is cut off or damaged", what_),
                        .got = fmt::format("{} bytes from byte {}", left(), at_),
                        .expected = std::to_string(n)});
    }
    const std::string_view piece = bytes_.substr(at_, static_cast<size_t>(n));
    at_ += static_cast<size_t>(n);
    return piece;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  uint8_t u8() { return number<uint8_t>(); }
  uint16_t u16() { return number<uint16_t>(); }
  uint32_t u32() { return number<uint32_t>(); }
  uint64_t u64() { return number<uint64_t>(); }
  /// The text up to the next newline, which is taken too.
  std::string_view line() {
    const size_t end = bytes_.find('\n', at_);
    const std::string_view text = take(end == bytes_.npos ? left() + 1 : end - at_ + 1);
    return text.substr(0, text.size() - 1);
  }

 private:
  const std::string& where_;
  const char* what_;
  std::string_view bytes_;
  size_t at_ = 0;
};

}  // namespace ditrain::weights
