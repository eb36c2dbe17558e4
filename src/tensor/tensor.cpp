#include "ditrain/tensor/tensor.hpp"

#include <algorithm>
#include <cstring>

#include "ditrain/base/error.hpp"

namespace ditrain {

int64_t num_elements(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

std::string to_string(const Shape& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

Tensor::Tensor(Shape shape, DType dtype, memory::Allocator& home) : shape_(std::move(shape)), dtype_(dtype) {
  for (int64_t d : shape_)
    if (d < 0) throw ShapeError({.where = "tensor", .what = "negative size", .got = to_string(shape_)});
  storage_ = std::make_shared<Storage>(home, bytes());
}

Tensor Tensor::reshaped(Shape shape) const {
  if (num_elements(shape) != size())
    throw ShapeError({.where = "tensor", .what = "reshape", .got = to_string(shape_), .expected = to_string(shape)});
  Tensor t = *this;
  t.shape_ = std::move(shape);
  return t;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  if (shape_.empty() || begin < 0 || begin > end || end > shape_[0])
    throw ShapeError({.where = "tensor",
                      .what = "rows " + std::to_string(begin) + " to " + std::to_string(end),
                      .got = to_string(shape_)});
  Shape shape = shape_;
  shape[0] = end - begin;
  return slice(shape_[0] ? size() / shape_[0] * begin : 0, shape);
}

Tensor Tensor::slice(int64_t first, Shape shape) const {
  if (first < 0 || first + num_elements(shape) > size())
    throw ShapeError({.where = "tensor",
                      .what = "slice " + to_string(shape) + " at " + std::to_string(first),
                      .got = to_string(shape_)});
  Tensor t = *this;
  t.shape_ = std::move(shape);
  t.offset_bytes_ += size_t(first) * dtype_bytes(dtype_);
  return t;
}

void throw_dtype_mismatch(DType got, DType wanted) {
  throw ShapeError({.where = "tensor", .what = "dtype", .got = dtype_name(got), .expected = dtype_name(wanted)});
}

void fill_zero(const Tensor& t) {
  std::byte* p = t.storage().acquire();
  std::fill_n(p + t.offset_bytes(), t.bytes(), std::byte{0});
  t.storage().release();
}

namespace {
template <class From, class To, class F>
void convert(const Tensor& from, const Tensor& to, F f) {
  const Pin<From> x(from);
  const Pin<To> y(to);
  std::transform(x.get(), x.get() + from.size(), y.get(), f);
}
}  // namespace

void copy(const Tensor& from, const Tensor& to) {
  if (from.size() != to.size())
    throw ShapeError(
        {.where = "copy", .what = "sizes differ", .got = to_string(from.shape()), .expected = to_string(to.shape())});
  if (from.dtype() == to.dtype()) {
    const std::byte* x = from.storage().acquire();
    std::byte* y = to.storage().acquire();
    if (from.bytes() != 0) std::memmove(y + to.offset_bytes(), x + from.offset_bytes(), from.bytes());
    from.storage().release(), to.storage().release();
  } else if (from.dtype() == DType::kF32 && to.dtype() == DType::kBF16) {
    convert<float, BFloat16>(from, to, to_bf16);
  } else if (from.dtype() == DType::kBF16 && to.dtype() == DType::kF32) {
    convert<BFloat16, float>(from, to, to_f32);
  } else {
    throw_dtype_mismatch(from.dtype(), to.dtype());
  }
}

Tensor from_values(Shape shape, const std::vector<float>& values) {
  Tensor t(std::move(shape));
  if (t.size() != int64_t(values.size()))
    throw ShapeError({.where = "tensor",
                      .what = "number of values",
                      .got = std::to_string(values.size()),
                      .expected = std::to_string(t.size())});
  std::copy(values.begin(), values.end(), Pin<float>(t).get());
  return t;
}

std::vector<float> to_vector(const Tensor& t) {
  const Pin<float> p(t);
  return {p.get(), p.get() + t.size()};
}

}  // namespace ditrain
