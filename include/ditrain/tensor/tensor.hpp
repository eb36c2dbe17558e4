// Tensor: a shape and a dtype over a slice of a Storage; row-major, contiguous. Copies share the memory.
//   Tensor x({B, T, C});                       // zeroed f32
//   Pin<float> p(x);  p[i] = 1;                // acquire ... release when p ends
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "ditrain/base/dtype.hpp"
#include "ditrain/tensor/storage.hpp"

namespace ditrain {

using Shape = std::vector<int64_t>;

int64_t num_elements(const Shape& shape);
std::string to_string(const Shape& shape);  ///< "[2, 3]"

class Tensor {
 public:
  Tensor() = default;  ///< nothing: `defined()` is false
  /// A zeroed tensor in memory of `home`. Errors: ShapeError if a size is negative
  explicit Tensor(Shape shape, DType dtype = DType::kF32, memory::Allocator& home = memory::system_memory());
  /// A tensor over a whole storage.
  Tensor(Shape shape, DType dtype, std::shared_ptr<Storage> storage);

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int64_t dim(size_t i) const { return shape_.at(i); }
  int64_t size() const { return num_elements(shape_); }
  DType dtype() const { return dtype_; }
  size_t bytes() const { return size_t(size()) * dtype_bytes(dtype_); }
  Storage& storage() const { return *storage_; }
  size_t offset_bytes() const { return offset_bytes_; }

  /// The same memory under another shape. Errors: ShapeError if the sizes differ
  Tensor reshaped(Shape shape) const;
  /// Rows [begin, end) of the first dimension, sharing memory. Errors: ShapeError out of range
  Tensor rows(int64_t begin, int64_t end) const;
  /// `shape` elements starting at element `first` of the flattened tensor, sharing memory (slices of an arena).
  /// Errors: ShapeError out of range
  Tensor slice(int64_t first, Shape shape) const;
  /// The same elements as a list of flat tensors, each of which can be pinned: the tensor itself or, if its arena's
  /// storage is in parts, one per part.
  std::vector<Tensor> parts() const;

 private:
  void enter_part();

  Shape shape_;
  DType dtype_ = DType::kF32;
  std::shared_ptr<Storage> storage_;
  size_t offset_bytes_ = 0;
};

template <class T>
inline constexpr DType kDTypeOf = DType::kF32;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<int64_t> = DType::kI64;

[[noreturn]] void throw_dtype_mismatch(DType got, DType wanted);

/// Holds a tensor's memory in place and gives its address. Pin<void> takes any dtype.
/// Errors: ShapeError if T is not the tensor's dtype
template <class T>
class Pin {
 public:
  explicit Pin(const Tensor& t, Access access = Access::kReadWrite) : tensor_(t) {
    if constexpr (!std::is_void_v<T>)
      if (t.dtype() != kDTypeOf<T>) throw_dtype_mismatch(t.dtype(), kDTypeOf<T>);
    p_ = reinterpret_cast<T*>(t.storage().acquire(access) + t.offset_bytes());
  }
  ~Pin() { tensor_.storage().release(); }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  T* get() const { return p_; }
  operator T*() const { return p_; }

 private:
  Tensor tensor_;
  T* p_;
};

/// Calls f(first element, parts) for tensors of the same size (types may differ) that may be in parts. They are split
/// wherever a part of any of them ends, so that f can pin the parts that it gets.
void for_common_parts(const std::vector<Tensor>& tensors,
                      const std::function<void(int64_t first, const std::vector<Tensor>& parts)>& f);

void fill_zero(const Tensor& t);
/// Copies all elements; converts between f32 and bf16. Errors: ShapeError if the numbers of elements differ
void copy(const Tensor& from, const Tensor& to);
/// A tensor in f32 with these values. Errors: ShapeError if their number is not that of the shape
Tensor from_values(Shape shape, const std::vector<float>& values);
std::vector<float> to_vector(const Tensor& t);

}  // namespace ditrain
