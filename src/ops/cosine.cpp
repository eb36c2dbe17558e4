#include "ditrain/ops/cosine.hpp"

#include <algorithm>
#include <cmath>

namespace ditrain::ops {
namespace {

constexpr double kLeastNorm = 1e-12;  // torch.nn.functional.normalize

// Lanes for the compiler to make vectors of.
double dot(const float* a, const float* b, int64_t n) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {};
  for (int64_t i = 0; i < n; i += kLanes)
    for (int64_t l = 0; l < std::min(kLanes, n - i); ++l) lanes[l] += double(a[i + l]) * double(b[i + l]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

double norm(const float* x, int64_t n) { return std::max(std::sqrt(dot(x, x, n)), kLeastNorm); }

// f(row) for every row of tensors of this shape.
template <class F>
void for_rows(Context& ctx, const Tensor& x, const F& f) {
  ctx.for_range(x.size() / x.shape().back(), 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t row = begin; row < end; ++row) f(row);
  });
}

}  // namespace

void row_cosines(Context& ctx, const Tensor& a, const Tensor& b, double* cosines) {
  expect_shape("row_cosines", "b", b, a.shape());
  const int64_t C = a.shape().back();
  const Pin<float> pa(a), pb(b);
  for_rows(ctx, a, [&](int64_t row) {
    const float *x = pa + row * C, *y = pb + row * C;
    cosines[row] = dot(x, y, C) / (norm(x, C) * norm(y, C));
  });
}

void add_row_cosines_gradient(Context& ctx, const Tensor& a, const Tensor& b, const double* cosines, double scale,
                              const Tensor& da) {
  expect_shape("add_row_cosines_gradient", "b", b, a.shape());
  expect_shape("add_row_cosines_gradient", "da", da, a.shape());
  const int64_t C = a.shape().back();
  const Pin<float> pa(a), pb(b), pda(da);
  for_rows(ctx, a, [&](int64_t row) {
    const float *x = pa + row * C, *y = pb + row * C;
    float* dx = pda + row * C;
    const double of_x = norm(x, C), along_y = scale / (of_x * norm(y, C)),
                 along_x = scale * cosines[row] / (of_x * of_x);
    for (int64_t i = 0; i < C; ++i) dx[i] += float(along_y * double(y[i]) - along_x * double(x[i]));
  });
}

}  // namespace ditrain::ops
