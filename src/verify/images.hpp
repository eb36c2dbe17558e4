// Images between [B, C, H, W], the order of fixtures, and [B, H, W, C], the order of convolutions.
#pragma once
#include "ditrain/tensor/tensor.hpp"

namespace ditrain::verify {

namespace images {
inline Tensor exchanged(const Tensor& from, const Shape& shape, int64_t rows, int64_t cols) {
  const Tensor to(shape);
  const Pin<float> x(from), y(to);
  for (int64_t b = 0; b < shape[0]; ++b)
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) y[(b * cols + j) * rows + i] = x[(b * rows + i) * cols + j];
  return to;
}
}  // namespace images

inline Tensor to_channels_last(const Tensor& x) {
  const Shape& s = x.shape();
  return images::exchanged(x, {s[0], s[2], s[3], s[1]}, s[1], s[2] * s[3]);
}
inline Tensor to_channels_first(const Tensor& x) {
  const Shape& s = x.shape();
  return images::exchanged(x, {s[0], s[3], s[1], s[2]}, s[1] * s[2], s[3]);
}

}  // namespace ditrain::verify
