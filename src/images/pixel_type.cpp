#include "ditrain/images/pixel_type.hpp"

#include <cstring>
#include <limits>

#include "ditrain/base/error.hpp"

namespace ditrain::images {
namespace {

struct TypeRow {
  PixelType type;
  const char *safetensors, *numpy;
  int64_t bytes;
  double low, high;  // of integers
};

template <class T>
constexpr TypeRow row(PixelType type, const char* safetensors, const char* numpy) {
  constexpr bool integer = std::numeric_limits<T>::is_integer;
  return {type,
          safetensors,
          numpy,
          sizeof(T),
          integer ? double(std::numeric_limits<T>::min()) : 0,
          integer ? double(std::numeric_limits<T>::max()) : 0};
}

constexpr TypeRow kRows[] = {
    row<uint8_t>(PixelType::kU8, "U8", "uint8"),   row<uint16_t>(PixelType::kU16, "U16", "uint16"),
    row<int16_t>(PixelType::kI16, "I16", "int16"), row<float>(PixelType::kF32, "F32", "float32"),
    row<int8_t>(PixelType::kI8, "I8", "int8"),     row<uint32_t>(PixelType::kU32, "U32", "uint32"),
    row<int32_t>(PixelType::kI32, "I32", "int32"), row<double>(PixelType::kF64, "F64", "float64"),
};

const TypeRow& row_of(PixelType type) {
  for (const TypeRow& row : kRows)
    if (row.type == type) return row;
  DITRAIN_CHECK(false, "a type of pixels");
}

template <class T>
void convert(const std::byte* from, int64_t n, double* to) {
  for (int64_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, from + i * int64_t(sizeof value), sizeof value);
    to[i] = double(value);
  }
}

}  // namespace

int64_t pixel_bytes(PixelType type) { return row_of(type).bytes; }
std::string safetensors_name(PixelType type) { return row_of(type).safetensors; }
std::string numpy_name(PixelType type) { return row_of(type).numpy; }
bool is_integer(PixelType type) { return type != PixelType::kF32 && type != PixelType::kF64; }
std::pair<double, double> number_range(PixelType type) {
  DITRAIN_CHECK(is_integer(type), "an integer type");
  return {row_of(type).low, row_of(type).high};
}

void to_f64(PixelType type, const std::byte* from, int64_t n, double* to) {
  switch (type) {
    case PixelType::kU8:
      return convert<uint8_t>(from, n, to);
    case PixelType::kU16:
      return convert<uint16_t>(from, n, to);
    case PixelType::kI16:
      return convert<int16_t>(from, n, to);
    case PixelType::kF32:
      return convert<float>(from, n, to);
    case PixelType::kI8:
      return convert<int8_t>(from, n, to);
    case PixelType::kU32:
      return convert<uint32_t>(from, n, to);
    case PixelType::kI32:
      return convert<int32_t>(from, n, to);
    case PixelType::kF64:
      return convert<double>(from, n, to);
  }
}

}  // namespace ditrain::images
