// Tensors of reproducible normal numbers, and comparison of their bits.
#pragma once
#include "ditrain/base/random.hpp"
#include "ditrain/tensor/tensor.hpp"

namespace ditrain::test {

inline Tensor random_tensor(Shape shape, uint64_t seed, float deviation = 1) {
  Tensor t(std::move(shape));
  const Pin<float> p(t);
  RandomKey(seed, Stream::kTest, 0).fill_normal(p, t.size());
  for (int64_t i = 0; i < t.size(); ++i) p[i] *= deviation;
  return t;
}

inline Tensor clone(const Tensor& t) {
  Tensor c(t.shape(), t.dtype());
  copy(t, c);
  return c;
}

inline double dot(const Tensor& a, const Tensor& b) {
  const Pin<float> x(a), y(b);
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) sum += double(x[i]) * y[i];
  return sum;
}

}  // namespace ditrain::test
