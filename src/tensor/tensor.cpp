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

Tensor::Tensor(Shape shape, DType dtype, std::shared_ptr<Storage> storage)
    : shape_(std::move(shape)), dtype_(dtype), storage_(std::move(storage)) {
  DITRAIN_CHECK(storage_->bytes() == bytes(), "a storage of another size");
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
  t.enter_part();
  return t;
}

// A tensor that lies in one part of its storage is a tensor on that part.
void Tensor::enter_part() {
  size_t begin = 0;
  for (const std::shared_ptr<Storage>& part : storage_->parts()) {
    const size_t end = begin + part->bytes();
    if (offset_bytes_ >= begin && offset_bytes_ + bytes() <= end && offset_bytes_ < end) {
      offset_bytes_ -= begin;
      const std::shared_ptr<Storage> own = part;  // `part` goes with the row
      storage_ = own;
      return;
    }
    begin = end;
  }
}

std::vector<Tensor> Tensor::parts() const {
  if (storage_->parts().empty()) return {reshaped({size()})};
  std::vector<Tensor> row;
  size_t begin = 0;
  for (const std::shared_ptr<Storage>& part : storage_->parts()) {
    const size_t end = begin + part->bytes();
    const size_t from = std::max(begin, offset_bytes_), to = std::min(end, offset_bytes_ + bytes());
    const size_t step = dtype_bytes(dtype_);
    if (from < to) row.push_back(slice(int64_t((from - offset_bytes_) / step), {int64_t((to - from) / step)}));
    begin = end;
  }
  return row;
}

void throw_dtype_mismatch(DType got, DType wanted) {
  throw ShapeError({.where = "tensor", .what = "dtype", .got = dtype_name(got), .expected = dtype_name(wanted)});
}

void fill_zero(const Tensor& t) {
  for (const Tensor& part : t.parts()) {
    const Pin<void> p(part);
    std::fill_n(static_cast<std::byte*>(p.get()), part.bytes(), std::byte{0});
  }
}

namespace {
template <class From, class To, class F>
void convert(const Tensor& from, const Tensor& to, F f) {
  const Pin<From> x(from);
  const Pin<To> y(to);
  std::transform(x.get(), x.get() + from.size(), y.get(), f);
}
}  // namespace

namespace {
// Both can be held in place.
void copy_part(const Tensor& from, const Tensor& to) {
  if (from.dtype() == to.dtype()) {
    const Pin<void> x(from), y(to);
    if (from.bytes() != 0) std::memmove(y.get(), x.get(), from.bytes());
  } else if (from.dtype() == DType::kF32 && to.dtype() == DType::kBF16) {
    convert<float, BFloat16>(from, to, to_bf16);
  } else if (from.dtype() == DType::kBF16 && to.dtype() == DType::kF32) {
    convert<BFloat16, float>(from, to, to_f32);
  } else {
    throw_dtype_mismatch(from.dtype(), to.dtype());
  }
}
}  // namespace

void for_common_parts(const std::vector<Tensor>& tensors,
                      const std::function<void(int64_t first, const std::vector<Tensor>& parts)>& f) {
  std::vector<std::vector<Tensor>> rows;
  for (const Tensor& t : tensors) rows.push_back(t.parts());
  std::vector<size_t> at(rows.size(), 0);       // the part of each tensor that the next element lies in
  std::vector<int64_t> inside(rows.size(), 0);  // elements of it that are done
  for (int64_t first = 0; first < tensors.front().size();) {
    int64_t n = INT64_MAX;
    for (size_t i = 0; i < rows.size(); ++i) n = std::min(n, rows[i].at(at[i]).size() - inside[i]);
    std::vector<Tensor> parts;
    for (size_t i = 0; i < rows.size(); ++i) {
      const Tensor& part = rows[i][at[i]];
      parts.push_back(part.slice(inside[i], {n}));
      if ((inside[i] += n) == part.size()) ++at[i], inside[i] = 0;
    }
    f(first, parts);
    first += n;
  }
}

void copy(const Tensor& from, const Tensor& to) {
  if (from.size() != to.size())
    throw ShapeError(
        {.where = "copy", .what = "sizes differ", .got = to_string(from.shape()), .expected = to_string(to.shape())});
  for_common_parts({from, to}, [](int64_t, const std::vector<Tensor>& parts) { copy_part(parts[0], parts[1]); });
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
  std::vector<float> values;
  for (const Tensor& part : t.parts()) {
    const Pin<float> p(part);
    values.insert(values.end(), p.get(), p.get() + part.size());
  }
  return values;
}

}  // namespace ditrain
