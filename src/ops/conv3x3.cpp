#include "ditrain/ops/conv3x3.hpp"

#include <algorithm>
#include <numeric>

namespace ditrain::ops {
namespace {

struct Sizes {
  int64_t B, C, N, H, W;
  Sizes(const char* op, const Tensor& x, const Tensor& w, const Tensor& y)
      : B(x.dim(0)), C(x.dim(1)), N(y.dim(1)), H(x.dim(2)), W(x.dim(3)) {
    expect_shape(op, "w", w, {N, C, 3, 3});
    expect_shape(op, "y", y, {B, N, H, W});
  }
  // f(pixel, neighbour of it at (di, dj), pixels in the run) for each row: runs of pixels whose neighbours exist.
  template <class F>
  void for_rows(int64_t di, int64_t dj, const F& f) const {
    const int64_t first = std::max<int64_t>(0, -dj), run = W - std::abs(dj);
    if (run <= 0) return;
    for (int64_t i = std::max<int64_t>(0, -di); i < H - std::max<int64_t>(0, di); ++i)
      f(i * W + first, (i + di) * W + first + dj, run);
  }
  // to[pixel] += weight from[neighbour of the pixel]
  void add_shifted(const float* from, float weight, int64_t di, int64_t dj, float* to) const {
    for_rows(di, dj, [=](int64_t at, int64_t neighbour, int64_t run) {
      for (int64_t j = 0; j < run; ++j) to[at + j] += weight * from[neighbour + j];
    });
  }
};

}  // namespace

void conv3x3_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y) {
  const Sizes s("conv3x3_forward", x, w, y);
  expect_shape("conv3x3_forward", "bias", bias, {s.N});
  const int64_t pixels = s.H * s.W;
  const Pin<float> px(x), pw(w), pbias(bias), py(y);
  ctx.for_range(s.B * s.N, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const int64_t b = plane / s.N, n = plane % s.N;
      float* to = py + plane * pixels;
      std::fill_n(to, pixels, pbias[n]);
      for (int64_t c = 0; c < s.C; ++c)
        for (int64_t k = 0; k < 9; ++k)
          s.add_shifted(px + (b * s.C + c) * pixels, pw[(n * s.C + c) * 9 + k], k / 3 - 1, k % 3 - 1, to);
    }
  });
}

void conv3x3_backward_data(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  const Sizes s("conv3x3_backward_data", dx, w, dy);
  const int64_t pixels = s.H * s.W;
  const Pin<float> pdy(dy), pw(w), pdx(dx);
  ctx.for_range(s.B * s.C, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const int64_t b = plane / s.C, c = plane % s.C;
      float* to = pdx + plane * pixels;
      std::fill_n(to, pixels, 0.0f);
      for (int64_t n = 0; n < s.N; ++n)
        for (int64_t k = 0; k < 9; ++k)
          s.add_shifted(pdy + (b * s.N + n) * pixels, pw[(n * s.C + c) * 9 + k], 1 - k / 3, 1 - k % 3, to);
    }
  });
}

void conv3x3_backward_weight(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& dbias,
                             bool accumulate) {
  const Sizes s("conv3x3_backward_weight", x, dw, dy);
  expect_shape("conv3x3_backward_weight", "dbias", dbias, {s.N});
  const int64_t pixels = s.H * s.W;
  const Pin<float> px(x), pdy(dy), pdw(dw), pdbias(dbias);
  const auto give = [accumulate](double sum, float& d) { d = float(accumulate ? double(d) + sum : sum); };
  ctx.for_range(s.N * s.C, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const int64_t n = pair / s.C, c = pair % s.C;
      for (int64_t k = 0; k < 9; ++k) {
        double sum = 0;
        for (int64_t b = 0; b < s.B; ++b) {
          const float *from = px + (b * s.C + c) * pixels, *d = pdy + (b * s.N + n) * pixels;
          s.for_rows(k / 3 - 1, k % 3 - 1, [&](int64_t at, int64_t neighbour, int64_t run) {
            for (int64_t j = 0; j < run; ++j) sum += double(d[at + j]) * double(from[neighbour + j]);
          });
        }
        give(sum, pdw[pair * 9 + k]);
      }
      if (c > 0) continue;
      double sum = 0;
      for (int64_t b = 0; b < s.B; ++b) {
        const float* d = pdy + (b * s.N + n) * pixels;
        sum = std::accumulate(d, d + pixels, sum);
      }
      give(sum, pdbias[n]);
    }
  });
}

}  // namespace ditrain::ops
