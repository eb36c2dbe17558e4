// Element types of tensors, and bf16 conversion (round to nearest even).
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

namespace ditrain {

enum class DType { kF32, kBF16, kI64 };

constexpr size_t dtype_bytes(DType t) { return t == DType::kF32 ? 4 : t == DType::kBF16 ? 2 : 8; }
constexpr const char* dtype_name(DType t) { return t == DType::kF32 ? "f32" : t == DType::kBF16 ? "bf16" : "i64"; }

/// Storage of a bf16 number: the upper half of an f32.
struct BFloat16 {
  uint16_t bits;
};
constexpr float to_f32(BFloat16 v) { return std::bit_cast<float>(uint32_t{v.bits} << 16); }
/// Round to nearest even; NaN stays NaN (quiet).
constexpr BFloat16 to_bf16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {uint16_t((u >> 16) | 0x40u)};
  return {uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

}  // namespace ditrain
