// The types of pixels: their words, their names elsewhere, and their numbers as f64.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "ditrain/base/words.hpp"

namespace ditrain::images {

/// Types of the numbers of rasters. The words are those of configs.
enum class PixelType { kU8, kU16, kI16, kF32, kI8, kU32, kI32, kF64 };
inline constexpr Word<PixelType> kPixelTypes[] = {
    {"u8", PixelType::kU8}, {"u16", PixelType::kU16}, {"i16", PixelType::kI16}, {"f32", PixelType::kF32},
    {"i8", PixelType::kI8}, {"u32", PixelType::kU32}, {"i32", PixelType::kI32}, {"f64", PixelType::kF64}};
constexpr std::span<const Word<PixelType>> words_of(PixelType) { return kPixelTypes; }

int64_t pixel_bytes(PixelType type);
std::string safetensors_name(PixelType type);  ///< "U16"
std::string numpy_name(PixelType type);        ///< "uint16"
bool is_integer(PixelType type);
/// f(number) with a number of one of the types that tiles have: u8, u16, i16, f32.
template <class F>
void with_tile_number(PixelType type, const F& f) {
  switch (type) {
    case PixelType::kU8:
      return f(uint8_t());
    case PixelType::kU16:
      return f(uint16_t());
    case PixelType::kI16:
      return f(int16_t());
    default:
      return f(float());
  }
}
/// The least and greatest number of an integer type.
std::pair<double, double> number_range(PixelType type);
/// n numbers of that type as f64; `from` may be unaligned.
void to_f64(PixelType type, const std::byte* from, int64_t n, double* to);

}  // namespace ditrain::images
