#include "ditrain/ops/pooling.hpp"

#include <algorithm>
#include <cstring>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/elementwise.hpp"

namespace ditrain::ops {
namespace {

constexpr const char* kOp = "pool2d";
constexpr int64_t kChannels = 16;  // at a time: a multiple of every vector

float to_float(float v) { return v; }
float to_float(BFloat16 v) { return to_f32(v); }
void store(const float* from, int64_t n, float* to) { std::copy_n(from, n, to); }
void store(const float* from, int64_t n, BFloat16* to) { kernels::convert(from, to, n); }

// Vectors of the baseline: pooling is a few percent of a network, the loads of its taps included.
typedef float Vec __attribute__((vector_size(16)));
constexpr int64_t kLanes = 4, kVecs = kChannels / kLanes;

void load(const float* x, Vec* to) {
#pragma GCC unroll 4
  for (int64_t i = 0; i < kVecs; ++i) std::memcpy(to + i, x + i * kLanes, sizeof(Vec));
}
void load(const BFloat16* x, Vec* to) {
  typedef uint16_t Half __attribute__((vector_size(8)));
  typedef uint32_t Bits __attribute__((vector_size(16)));
#pragma GCC unroll 4
  for (int64_t i = 0; i < kVecs; ++i) {
    Half half;
    std::memcpy(&half, x + i * kLanes, sizeof half);
    const Bits bits = __builtin_convertvector(half, Bits) << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}
template <class T>
void load_first(const T* x, int64_t n, Vec* to) {
  T padded[kChannels] = {};
  std::copy_n(x, n, padded);
  load(padded, to);
}

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

// Channels [0, n) of one output pixel; n is kChannels if `whole`.
template <Pool::Kind kind, bool whole, class T>
void pool_channels(const T* x, int64_t row_stride, int64_t pixel_stride, const Taps& taps, int64_t n, T* y) {
  const auto read = [n](const T* from, Vec* to) { whole ? load(from, to) : load_first(from, n, to); };
  Vec value[kVecs] = {}, tap[kVecs];
  if (kind == Pool::Kind::kMax) read(x, value);
  for (int64_t i = 0; i < taps.rows; ++i) {
    for (int64_t j = 0; j < taps.columns; ++j) {
      read(x + i * row_stride + j * pixel_stride, tap);
#pragma GCC unroll 4
      for (int64_t k = 0; k < kVecs; ++k) {
        if (kind == Pool::Kind::kAverage) {
          value[k] += tap[k];
        } else {
          const Vec larger = tap[k] > value[k] ? tap[k] : value[k];
          value[k] = tap[k] == tap[k] ? larger : tap[k];  // NaN stays
        }
      }
    }
  }
  if (kind == Pool::Kind::kAverage)
    for (Vec& v : value) v /= float(taps.rows * taps.columns);
  float result[kChannels];
  std::memcpy(result, value, sizeof result);
  store(result, n, y);
}

template <Pool::Kind kind, class T>
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
          pool_channels<kind, true>(from + c, W * stride, stride, taps, kChannels, to + c);
        if (c < C) pool_channels<kind, false>(from + c, W * stride, stride, taps, C - c, to + c);
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
  const auto run = [&]<class T>(T) {
    pool.kind == Pool::Kind::kMax ? pool_all<Pool::Kind::kMax, T>(ctx, x, pool, y)
                                  : pool_all<Pool::Kind::kAverage, T>(ctx, x, pool, y);
  };
  x.images.dtype() == DType::kBF16 ? run(BFloat16()) : run(0.0f);
}

void mean_over_pixels(Context& ctx, const ChannelView& x, const Tensor& y) {
  expect_shape("mean_over_pixels", "y", y, {x.images.dim(0), x.count});
  x.images.dtype() == DType::kBF16 ? mean_all<BFloat16>(ctx, x, y) : mean_all<float>(ctx, x, y);
}

}  // namespace ditrain::ops
