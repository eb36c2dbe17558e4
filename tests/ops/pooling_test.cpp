// Pooling against plain loops in f64, and views of channels: what lies beside them stays as it is.
#include "ditrain/ops/pooling.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "support/random_tensor.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::test;
using ops::ChannelView;
using ops::Pool;

namespace {

constexpr float kUntouched = 77;

Tensor typed(const Tensor& x, bool half) {
  const Tensor y(x.shape(), half ? DType::kBF16 : DType::kF32);
  copy(x, y);
  return y;
}
std::vector<float> numbers(const Tensor& x) {
  const Tensor f32(x.shape());
  copy(x, f32);
  return to_vector(f32);
}
Tensor filled(const Shape& shape, bool half) {
  const Tensor x(shape);
  std::fill_n(Pin<float>(x).get(), x.size(), kUntouched);
  return typed(x, half);
}

/// Element (b, p, q, c) of the pooled channels of x, in f64.
double pooled(const std::vector<float>& x, const Shape& shape, int64_t begin, const Pool& pool, int64_t b, int64_t p,
              int64_t q, int64_t c) {
  double largest = -INFINITY, sum = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < pool.size; ++i)
    for (int64_t j = 0; j < pool.size; ++j) {
      const int64_t row = p * pool.stride - pool.pad + i, column = q * pool.stride - pool.pad + j;
      if (row < 0 || row >= shape[1] || column < 0 || column >= shape[2]) continue;
      const double v = double(x[size_t(((b * shape[1] + row) * shape[2] + column) * shape[3] + begin + c)]);
      largest = std::max(largest, v), sum += v, ++count;
    }
  return pool.kind == Pool::Kind::kMax ? largest : sum / double(count);
}

}  // namespace

TEST_CASE("pooling of views equals plain loops, and touches no other channels") {
  const Pool pools[] = {{.kind = Pool::Kind::kMax, .size = 3, .stride = 2},
                        {.kind = Pool::Kind::kMax, .size = 3, .stride = 1, .pad = 1},
                        {.kind = Pool::Kind::kAverage, .size = 3, .stride = 1, .pad = 1},
                        {.kind = Pool::Kind::kAverage, .size = 5, .stride = 3, .pad = 2},
                        {.kind = Pool::Kind::kMax, .size = 1}};
  Workers one(1), three(3);
  for (const Pool& pool : pools)
    for (const auto& [H, W, count] : {std::array<int64_t, 3>{5, 5, 16}, {7, 6, 37}, {3, 9, 1}})
      for (const bool half : {false, true}) {
        CAPTURE(int(pool.kind), pool.size, pool.stride, pool.pad, H, W, count, half);
        const Shape from{2, H, W, count + 5};
        const Tensor x = typed(random_tensor(from, 1), half);
        const auto side = [&](int64_t n) { return (n + 2 * pool.pad - pool.size) / pool.stride + 1; };
        const Shape to{2, side(H), side(W), count + 3};
        const Tensor y = filled(to, half), again = filled(to, half);
        ops::pool2d(one.ctx, {x, 4, count}, pool, {y, 1, count});
        ops::pool2d(three.ctx, {x, 4, count}, pool, {again, 1, count});
        const std::vector<float> values = numbers(x), got = numbers(y);
        REQUIRE(numbers(again) == got);
        for (int64_t i = 0; i < y.size(); ++i) {
          const int64_t c = i % to[3] - 1, q = i / to[3] % to[2], p = i / to[3] / to[2] % to[1],
                        b = i / to[3] / to[2] / to[1];
          if (c < 0 || c >= count) {
            REQUIRE(got[size_t(i)] == kUntouched);
            continue;
          }
          const double want = pooled(values, from, 4, pool, b, p, q, c);
          const double rounding = pool.kind == Pool::Kind::kMax ? 0 : half ? 0x1p-8 : 0x1p-22;
          REQUIRE(std::abs(double(got[size_t(i)]) - want) <= rounding * std::max(1.0, std::abs(want)));
        }
      }
}

TEST_CASE("a maximum of NaN is NaN") {
  Workers one(1);
  const Tensor x = random_tensor({1, 3, 3, 2}, 1), y({1, 1, 1, 2});
  const Pin<float> numbers_of_x(x);
  numbers_of_x[2 * 4] = NAN;  // channel 0 of the pixel in the middle
  ops::pool2d(one.ctx, {x, 0, 2}, {.kind = Pool::Kind::kMax, .size = 3}, {y, 0, 2});
  CHECK(std::isnan(to_vector(y)[0]));
  CHECK(std::isfinite(to_vector(y)[1]));
}

TEST_CASE("the mean over pixels is that of the view's channels") {
  Workers three(3);
  for (const bool half : {false, true}) {
    const Tensor x = typed(random_tensor({2, 7, 5, 40}, 1), half), y({2, 33});
    ops::mean_over_pixels(three.ctx, {x, 6, 33}, y);
    const std::vector<float> values = numbers(x), got = to_vector(y);
    for (int64_t i = 0; i < y.size(); ++i) {
      double sum = 0;
      for (int64_t p = 0; p < 35; ++p) sum += double(values[size_t((i / 33 * 35 + p) * 40 + 6 + i % 33)]);
      REQUIRE(double(got[size_t(i)]) == Approx(sum / 35).epsilon(1e-7).margin(1e-9));
    }
  }
  CHECK_THROWS_AS(ops::mean_over_pixels(three.ctx, {Tensor({1, 2, 2, 4}), 0, 4}, Tensor({1, 3})), ShapeError);
}

TEST_CASE("pooling refuses shapes that do not fit") {
  Workers one(1);
  const Tensor x({1, 4, 4, 8}), y({1, 2, 2, 8});
  const Pool three{.kind = Pool::Kind::kMax, .size = 3};
  CHECK_NOTHROW(ops::pool2d(one.ctx, {x, 0, 8}, three, {y, 0, 8}));
  CHECK_THROWS_AS(ops::pool2d(one.ctx, {x, 0, 7}, three, {y, 0, 8}), ShapeError);
  CHECK_THROWS_AS(ops::pool2d(one.ctx, {x, 0, 8}, {.size = 5}, {y, 0, 8}), ShapeError);
  CHECK_THROWS_AS(ops::pool2d(one.ctx, {x, 0, 8}, three, {typed(y, true), 0, 8}), ShapeError);
  CHECK_THROWS_AS(ops::pool2d(one.ctx, {x, 0, 8}, {.size = 3, .pad = 3}, {y, 0, 8}), LogicFault);
}
