// Pooling of channels-last images, for inference. Views say which channels are read and written (ops/conv.hpp).
#pragma once
#include "ditrain/ops/conv.hpp"

namespace ditrain::ops {

struct Pool {
  enum class Kind { kMax, kAverage };
  Kind kind = Kind::kMax;
  int64_t size = 3, stride = 1, pad = 0;  ///< in pixels, along both sides; padding does not count in max or mean
};

/// Math:     y[b,p,q,c] = max or mean of x[b, p stride - pad + i, q stride - pad + j, c] over the 0 <= i, j < size that
///           lie in the image
/// Shapes:   x [B,H,W,C]; y [B, (H + 2 pad - size) / stride + 1, likewise, C]
/// Types:    x and y both f32 or both bf16; sums f32 in the order of rows, then columns
/// Numerics: the bits do not depend on the number of workers
/// Errors:   ShapeError "[pool2d] ..."
void pool2d(Context& ctx, const ChannelView& x, const Pool& pool, const ChannelView& y);

/// Math:     y[b,c] = mean over all pixels of x[b,:,:,c], summed in f64
/// Shapes:   x [B,H,W,C], y [B,C] f32
void mean_over_pixels(Context& ctx, const ChannelView& x, const Tensor& y);

}  // namespace ditrain::ops
