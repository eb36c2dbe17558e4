#include "ditrain/ops/group_norm.hpp"

#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/elementwise.hpp"

namespace ditrain::ops {
namespace {

constexpr const char* kOp = "group_norm";
constexpr int64_t kLeastRows = 32, kMostUnits = 512;

struct Sizes {
  int64_t B, pixels, C, unit, units;
  explicit Sizes(const Shape& x) : B(x.at(0)), pixels(x.at(1) * x.at(2)), C(x.at(3)) {
    unit = moment_rows(pixels), units = (pixels + unit - 1) / unit;
  }
  int64_t rows_of(int64_t u) const { return std::min(unit, pixels - u * unit); }
};

// The mean and 1 / sqrt(var + eps) of channels [begin, end) of an image, from the moments of its units.
struct Statistics {
  double mean, rstd;
};
Statistics statistics(const Sizes& s, const float* moments, int64_t begin, int64_t end, double eps) {
  double sum = 0, squares = 0;
  const auto n = double(s.pixels * (end - begin));
  for (int64_t u = 0; u < s.units; ++u) {
    const float *first = moments + u * 3 * s.C, *d = first + s.C;
    const auto rows = double(s.rows_of(u));
    for (int64_t c = begin; c < end; ++c) sum += rows * double(first[c]) + double(d[c]);
  }
  const double mean = sum / n;
  for (int64_t u = 0; u < s.units; ++u) {
    const float *first = moments + u * 3 * s.C, *d = first + s.C, *d2 = d + s.C;
    const auto rows = double(s.rows_of(u));
    for (int64_t c = begin; c < end; ++c) {
      const double away = double(first[c]) - mean;
      squares += double(d2[c]) + 2 * away * double(d[c]) + rows * away * away;
    }
  }
  return {mean, 1 / std::sqrt(squares / n + eps)};
}

template <class T>
void apply(const T* x, const float* mean, const float* scale, const float* shift, T* y, int64_t rows, int64_t C,
           bool silu) {
  silu ? kernels::group_norm_silu(x, mean, scale, shift, y, rows, C)
       : kernels::group_norm_apply(x, mean, scale, shift, y, rows, C);
}

// Rows of one image.
template <class T>
void normalise(Context& ctx, const Tensor& x, const float* terms, const Tensor& bias, const GroupNorm& norm,
               const Tensor& y) {
  const Pin<T> px(x), py(y);
  const Pin<float> pbias(bias);
  const int64_t C = x.shape().back();
  ctx.for_range(x.size() / C, 16, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    apply<T>(px + begin * C, terms, terms + C, pbias, py + begin * C, end - begin, C, norm.silu);
  });
}

template <class T>
void moments_of(Context& ctx, const Sizes& s, const Tensor& x, const Tensor& moments) {
  const Pin<T> px(x);
  const Pin<float> pmoments(moments);
  ctx.for_range(s.B * s.units, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / s.units, u = i % s.units;
      float* first = pmoments + i * 3 * s.C;
      kernels::column_moments(px + (b * s.pixels + u * s.unit) * s.C, s.C, first, first + s.C, first + 2 * s.C,
                              s.rows_of(u), s.C);
    }
  });
}

void expect_images(const Tensor& x) {
  if (x.shape().size() != 4 || x.size() == 0)
    throw ShapeError({.where = kOp, .what = "images", .got = to_string(x.shape()), .expected = "[B, H, W, C]"});
}

}  // namespace

int64_t moment_rows(int64_t pixels) {
  const int64_t each = (pixels + kMostUnits - 1) / kMostUnits;
  return (each + kLeastRows - 1) / kLeastRows * kLeastRows;
}

Shape moments_shape(const Shape& x) {
  const Sizes s(x);
  return {s.B, s.units, 3, s.C};
}

void image_moments(Context& ctx, const Tensor& x, const Tensor& moments) {
  expect_images(x);
  expect_shape(kOp, "moments", moments, moments_shape(x.shape()));
  const auto of = x.dtype() == DType::kBF16 ? moments_of<BFloat16> : moments_of<float>;
  of(ctx, Sizes(x.shape()), x, moments);
}

void group_norm_terms(Context& ctx, const Shape& x, const Tensor& moments, const Tensor& weight, const GroupNorm& norm,
                      const Tensor& terms) {
  const Sizes s(x);
  expect_shape(kOp, "moments", moments, moments_shape(x));
  expect_shape(kOp, "weight", weight, {s.C});
  expect_shape(kOp, "terms", terms, {s.B, 2, s.C});
  if (norm.groups < 1 || s.C % norm.groups != 0)
    throw ShapeError({.where = kOp,
                      .what = "channels do not divide into groups",
                      .got = std::to_string(s.C),
                      .expected = "a multiple of " + std::to_string(norm.groups)});
  const Pin<float> pmoments(moments), pweight(weight), pterms(terms);
  const int64_t each = s.C / norm.groups;
  ctx.for_range(s.B * norm.groups, 1, [&](int64_t first, int64_t last, const parallel::Worker&) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t b = i / norm.groups, begin = i % norm.groups * each;
      const Statistics of = statistics(s, pmoments + b * s.units * 3 * s.C, begin, begin + each, norm.eps);
      float *mean = pterms + b * 2 * s.C, *scale = mean + s.C;
      for (int64_t c = begin; c < begin + each; ++c)
        mean[c] = float(of.mean), scale[c] = float(of.rstd * double(pweight[c]));
    }
  });
}

void group_norm_rows(Context& ctx, const Tensor& x, const Tensor& terms, const Tensor& bias, const GroupNorm& norm,
                     const Tensor& y) {
  expect_images(x);
  const int64_t C = x.dim(3);
  expect_shape(kOp, "y", y, x.shape());
  expect_shape(kOp, "terms", terms, {1, 2, C});
  expect_shape(kOp, "bias", bias, {C});
  DITRAIN_CHECK(x.dim(0) == 1, "rows of one image");
  if (x.dtype() != y.dtype()) throw_dtype_mismatch(y.dtype(), x.dtype());
  const Pin<float> pterms(terms);
  (x.dtype() == DType::kBF16 ? normalise<BFloat16> : normalise<float>)(ctx, x, pterms, bias, norm, y);
}

void group_norm(Context& ctx, const Tensor& x, const Tensor& moments, const Tensor& weight, const Tensor& bias,
                const GroupNorm& norm, const Tensor& y) {
  expect_images(x);
  expect_shape(kOp, "y", y, x.shape());
  const Tensor terms({x.dim(0), 2, x.dim(3)});
  group_norm_terms(ctx, x.shape(), moments, weight, norm, terms);
  for (int64_t b = 0; b < x.dim(0); ++b)
    group_norm_rows(ctx, x.rows(b, b + 1), terms.rows(b, b + 1), bias, norm, y.rows(b, b + 1));
}

}  // namespace ditrain::ops
