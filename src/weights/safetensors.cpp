#include "ditrain/weights/safetensors.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "ditrain/base/dtype.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/files/mapped_file.hpp"
#include "safetensors_header.hpp"

namespace ditrain::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little endian and is not swapped");

template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// Exact: every f16 is an f32.
float f16_to_f32(uint16_t h) {
  const int exponent = h >> 10 & 31;
  const int fraction = h & 1023;
  float magnitude = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  if (exponent == 0) magnitude = std::ldexp(static_cast<float>(fraction), -24);
  if (exponent == 31) magnitude = fraction ? std::numeric_limits<float>::quiet_NaN() : INFINITY;
  return std::copysign(magnitude, h & 0x8000 ? -1.0f : 1.0f);
}

struct F16 {
  uint16_t bits;
};

template <class Out, class In>
Out convert(In value) {
  if constexpr (std::is_same_v<In, BFloat16>)
    return static_cast<Out>(ditrain::to_f32(value));
  else if constexpr (std::is_same_v<In, F16>)
    return static_cast<Out>(f16_to_f32(value.bits));
  else
    return static_cast<Out>(value);
}

template <class In, class Out>
void convert_all(const TensorView& view, Out* out) {
  for (size_t i = 0; i < view.bytes / sizeof(In); ++i) out[i] = convert<Out>(load<In>(view.data + i * sizeof(In)));
}

// False if the dtype is not a floating-point one that we read.
template <class Out>
bool convert_floats(const TensorView& view, Out* out) {
  if (view.dtype == "F32") return convert_all<float>(view, out), true;
  if (view.dtype == "F64") return convert_all<double>(view, out), true;
  if (view.dtype == "BF16") return convert_all<BFloat16>(view, out), true;
  if (view.dtype == "F16") return convert_all<F16>(view, out), true;
  return false;
}

template <class Out>
bool convert_integers(const TensorView& view, Out* out) {
  if (view.dtype == "I64") return convert_all<int64_t>(view, out), true;
  if (view.dtype == "I32") return convert_all<int32_t>(view, out), true;
  if (view.dtype == "U8" || view.dtype == "BOOL") return convert_all<uint8_t>(view, out), true;
  if (view.dtype == "I8") return convert_all<int8_t>(view, out), true;
  if (view.dtype == "I16") return convert_all<int16_t>(view, out), true;
  if (view.dtype == "U16") return convert_all<uint16_t>(view, out), true;
  if (view.dtype == "U32") return convert_all<uint32_t>(view, out), true;
  if (view.dtype == "U64") return convert_all<uint64_t>(view, out), true;
  return false;
}

[[noreturn]] void fail_dtype(const TensorView& view, const char* expected) {
  throw InputError({.where = fmt::format("tensor '{}'", printable(view.name)),
                    .what = "cannot be read as this kind of number",
                    .got = view.dtype,
                    .expected = expected});
}

}  // namespace

int64_t TensorView::num_elements() const {
  int64_t n = 1;
  for (const int64_t dimension : shape) n *= dimension;
  return n;
}

size_t safetensors_dtype_bits(const std::string& dtype) {
  static const std::unordered_map<std::string, size_t> kBits = {
      {"BOOL", 8},        {"U8", 8},   {"I8", 8},      {"F8_E5M2", 8}, {"F8_E4M3", 8},     {"F8_E8M0", 8},
      {"F8_E4M3FNUZ", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},        {"F16", 16}, {"BF16", 16},   {"I32", 32},    {"U32", 32},        {"F32", 32},
      {"F64", 64},        {"I64", 64}, {"U64", 64},    {"C64", 64}};
  const auto found = kBits.find(dtype);
  return found == kBits.end() ? 0 : found->second;
}

size_t safetensors_dtype_bytes(const std::string& dtype) {
  const size_t bits = safetensors_dtype_bits(dtype);
  return bits % 8 == 0 ? bits / 8 : 0;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  const auto file = std::make_shared<const files::MappedFile>(path);
  bytes_ = file->bytes();
  if (bytes_ < 8) {
    throw InputError({.where = path,
                      .what = "too short for a safetensors file",
                      .got = fmt::format("{} bytes", bytes_),
                      .expected = "at least 8"});
  }
  mapping_ = {file, file->data()};
  const auto header_bytes = load<uint64_t>(mapping_.get());
  if (header_bytes > kMaxHeaderBytes) {
    throw InputError({.where = path,
                      .what = "the header length is over the limit (is this a safetensors file?)",
                      .got = std::to_string(header_bytes),
                      .expected = fmt::format("at most {}", kMaxHeaderBytes)});
  }
  if (header_bytes > bytes_ - 8) {
    throw InputError({.where = path,
                      .what = "the header is longer than the file",
                      .got = fmt::format("{} bytes after the length", bytes_ - 8),
                      .expected = std::to_string(header_bytes)});
  }
  const std::byte* data = mapping_.get() + 8 + header_bytes;
  const std::string_view text(reinterpret_cast<const char*>(mapping_.get() + 8), header_bytes);
  SafetensorsHeader header = parse_safetensors_header(path, text, bytes_ - 8 - header_bytes);
  metadata_ = std::move(header.metadata);
  for (HeaderEntry& e : header.entries) {
    index_.emplace(e.name, tensors_.size());
    tensors_.push_back({std::move(e.name), std::move(e.dtype), std::move(e.shape), data + e.begin, e.end - e.begin,
                        8 + header_bytes + e.begin});
  }
}

void SafetensorsFile::release_pages() const {
  if (mapping_) madvise(const_cast<std::byte*>(mapping_.get()), bytes_, MADV_DONTNEED);  // only a hint
}

const TensorView& SafetensorsFile::tensor(const std::string& name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return tensors_[found->second];
  std::vector<std::string> names;
  for (const TensorView& t : tensors_) names.push_back(t.name);
  const std::string nearest = nearest_word(name, names);
  throw InputError({.where = path_,
                    .what = fmt::format("there is no tensor '{}'", printable(name)),
                    .got = fmt::format("a file of {} tensors", names.size()),
                    .hint = nearest.empty() ? "" : fmt::format("'{}'", printable(nearest))});
}

TensorView row_range(const TensorView& view, int64_t first, int64_t count) {
  if (view.shape.empty() || first < 0 || count < 0 || first > view.shape[0] || count > view.shape[0] - first) {
    throw InputError({.where = fmt::format("tensor '{}'", printable(view.name)),
                      .what = "rows out of range",
                      .got = fmt::format("{} rows from {}", count, first),
                      .expected = fmt::format("inside {}", view.shape.empty() ? 0 : view.shape[0])});
  }
  const size_t row_bytes = view.shape[0] == 0 ? 0 : view.bytes / static_cast<size_t>(view.shape[0]);
  TensorView rows = view;
  rows.shape[0] = count;
  rows.data += static_cast<size_t>(first) * row_bytes;
  rows.offset += static_cast<size_t>(first) * row_bytes;
  rows.bytes = static_cast<size_t>(count) * row_bytes;
  return rows;
}

void read_f32(const TensorView& view, float* out) {
  if (!convert_floats(view, out)) fail_dtype(view, "F32, F64, BF16 or F16");
}

std::vector<float> to_f32(const TensorView& view) {
  std::vector<float> out(static_cast<size_t>(view.num_elements()));
  read_f32(view, out.data());
  return out;
}

std::vector<double> to_f64(const TensorView& view) {
  std::vector<double> out(static_cast<size_t>(view.num_elements()));
  if (!convert_floats(view, out.data()) && !convert_integers(view, out.data()))
    fail_dtype(view, "F64, F32, BF16, F16, BOOL or an integer type");
  return out;
}

std::vector<int64_t> to_i64(const TensorView& view) {
  std::vector<int64_t> out(static_cast<size_t>(view.num_elements()));
  if (!convert_integers(view, out.data())) fail_dtype(view, "BOOL or an integer type");
  if (view.dtype == "U64") {
    for (const int64_t value : out)
      if (value < 0) fail_dtype(view, "values up to 2^63 - 1");
  }
  return out;
}

}  // namespace ditrain::weights
