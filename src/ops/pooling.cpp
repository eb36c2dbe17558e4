#include "ditrain/ops/pooling.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"

namespace ditrain::ops {
namespace {

constexpr const char* kOp = "pool2d";
constexpr int64_t kChannels = 16;  // at a time: a multiple of every vector

float to_float(float v) { return v; }
float to_float(BFloat16 v) { return to_f32(v); }
void store(float v, float* to) { *to = v; }
void store(float v, BFloat16* to) { *to = to_bf16(v); }

// The pixels of one window that lie in the image: `rows` times `columns` from `first`.
struct Taps {
  int64_t first_row, rows, first_column, columns;
};
Taps taps_of(const Pool& p, int64_t height, int64_t width, int64_t row, int64_t column) {
  const int64_t top = row * p.stride - p.pad, left = column * p.stride - p.pad;
  const int64_t first_row = std::max<int64_t>(top, 0), first_column = std::max<int64_t>(left, 0);
  return {first_row, std::min(top + p.size, height) - first_row, first_column,
          std::min(left + p.size, width) - first_column};
}

// Channels [0, n), n <= kChannels, of one output pixel; n is a constant in all calls but the last of a pixel.
template <class T>
void pool_channels(const T* x, int64_t row_stride, int64_t pixel_stride, const Taps& taps, Pool::Kind kind, int64_t n,
                   T* y) {
  float value[kChannels];
  for (int64_t c = 0; c < n; ++c) value[c] = kind == Pool::Kind::kMax ? to_float(x[c]) : 0.0f;
  for (int64_t i = 0; i < taps.rows; ++i) {
    for (int64_t j = 0; j < taps.columns; ++j) {
      const T* tap = x + i * row_stride + j * pixel_stride;
      if (kind == Pool::Kind::kMax) {
        for (int64_t c = 0; c < n; ++c) {
          const float v = to_float(tap[c]);
          value[c] = v > value[c] || v != v ? v : value[c];  // NaN stays
        }
      } else {
        for (int64_t c = 0; c < n; ++c) value[c] += to_float(tap[c]);
      }
    }
  }
  const float count = kind == Pool::Kind::kMax ? 1.0f : float(taps.rows * taps.columns);
  for (int64_t c = 0; c < n; ++c) store(value[c] / count, y + c);
}

template <class T>
void pool_all(Context& ctx, const ChannelView& x, const Pool& pool, const ChannelView& y) {
  const Pin<T> px(x.images), py(y.images);
  const int64_t H = x.images.dim(1), W = x.images.dim(2), stride = x.images.dim(3);
  const int64_t rows = y.images.dim(1), columns = y.images.dim(2), C = x.count;
  ctx.for_range(y.images.dim(0) * rows, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t q = 0; q < columns; ++q) {
        const Taps taps = taps_of(pool, H, W, r % rows, q);
        const T* from = px + ((r / rows * H + taps.first_row) * W + taps.first_column) * stride + x.begin;
        T* to = py + (r * columns + q) * y.images.dim(3) + y.begin;
        int64_t c = 0;
        for (; c + kChannels <= C; c += kChannels)
          pool_channels(from + c, W * stride, stride, taps, pool.kind, kChannels, to + c);
        if (c < C) pool_channels(from + c, W * stride, stride, taps, pool.kind, C - c, to + c);
      }
    }
  });
}

template <class T>
void mean_all(Context& ctx, const ChannelView& x, const Tensor& y) {
  const Pin<T> px(x.images);
  const Pin<float> py(y);
  const int64_t pixels = x.images.dim(1) * x.images.dim(2), stride = x.images.dim(3), C = x.count;
  ctx.for_range(x.images.dim(0) * C, kChannels, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t i = begin; i < end; ++i) {
      const T* from = px + i / C * pixels * stride + x.begin + i % C;
      double sum = 0;
      for (int64_t p = 0; p < pixels; ++p) sum += double(to_float(from[p * stride]));
      py[i] = float(sum / double(pixels));
    }
  });
}

}  // namespace

void pool2d(Context& ctx, const ChannelView& x, const Pool& pool, const ChannelView& y) {
  DITRAIN_CHECK(pool.size >= 1 && pool.stride >= 1 && pool.pad >= 0 && pool.pad < pool.size, "an impossible pooling");
  const auto outputs = [&](int64_t n) {
    return n + 2 * pool.pad < pool.size ? 0 : (n + 2 * pool.pad - pool.size) / pool.stride + 1;
  };
  const Shape want = {x.images.dim(0), outputs(x.images.dim(1)), outputs(x.images.dim(2)), x.count};
  if (want[1] < 1 || want[2] < 1 || y.shape() != want)
    throw ShapeError({.where = kOp, .what = "y", .got = to_string(y.shape()), .expected = to_string(want)});
  if (x.images.dtype() != y.images.dtype()) throw_dtype_mismatch(y.images.dtype(), x.images.dtype());
  x.images.dtype() == DType::kBF16 ? pool_all<BFloat16>(ctx, x, pool, y) : pool_all<float>(ctx, x, pool, y);
}

void mean_over_pixels(Context& ctx, const ChannelView& x, const Tensor& y) {
  expect_shape("mean_over_pixels", "y", y, {x.images.dim(0), x.count});
  x.images.dtype() == DType::kBF16 ? mean_all<BFloat16>(ctx, x, y) : mean_all<float>(ctx, x, y);
}

}  // namespace ditrain::ops
