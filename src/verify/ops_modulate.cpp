// modulate alone: y = x (1 + scale) + shift. The framework has it only behind LayerNorm, so rows are padded until
// LayerNorm is a known factor: a row x of C values becomes (x, -x, a, -a), whose mean is 0 and whose variance plus eps
// is R^2, R a power of two. What comes out is x / R (1 + scale') + shift, and scale' = R (1 + scale) - 1 takes R away.
#include <algorithm>
#include <cmath>

#include "ditrain/ops/elementwise.hpp"
#include "operator.hpp"

namespace ditrain::verify {

namespace {

struct Sizes {
  int64_t B, T, C;
  int64_t rows() const { return B * T; }
  int64_t wide() const { return 2 * C + 2; }
};

double sum_squares(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(x[i]) * x[i];
  return sum;
}

/// Rows padded to deviation R.
struct PaddedRows {
  PaddedRows(const std::vector<float>& x, const Sizes& s) : values(size_t(s.rows() * s.wide())) {
    double largest = 0;
    for (int64_t r = 0; r < s.rows(); ++r) largest = std::max(largest, sum_squares(&x[size_t(r * s.C)], s.C));
    // a^2 = R^2 (C + 1) - sum x^2 must not be small beside what it is the difference of.
    while (R * R * double(s.C + 1) < 2 * largest) R *= 2;
    for (int64_t r = 0; r < s.rows(); ++r) {
      const float* row = &x[size_t(r * s.C)];
      float* wide = &values[size_t(r * s.wide())];
      for (int64_t j = 0; j < s.C; ++j) wide[j] = row[j], wide[s.C + j] = -row[j];
      const double rest = (R * R - double(ops::kLayerNormEps)) * double(s.C + 1) - sum_squares(row, s.C);
      a.push_back(std::sqrt(rest));
      wide[2 * s.C] = float(a.back()), wide[2 * s.C + 1] = -float(a.back());
    }
  }
  double R = 1;
  std::vector<double> a;
  std::vector<float> values;
};

/// [B, C] to [B, 2C + 2]: both copies of x and the two padding values (scaled like an x that is not modulated).
Tensor widen(const std::vector<float>& per_sample, const Sizes& s, double R, bool is_scale) {
  std::vector<float> wide(size_t(s.B * s.wide()), 0.0f);
  for (int64_t b = 0; b < s.B; ++b)
    for (int64_t j = 0; j < 2 * s.C; ++j) {
      const double value = per_sample[size_t(b * s.C + j % s.C)];
      wide[size_t(b * s.wide() + j)] = float(is_scale ? R * (1 + value) - 1 : value);
    }
  return from_values({s.B, s.wide()}, wide);
}

/// Upstream gradients for which LayerNorm's backward passes the first C values through: with g = dy (1 + scale'), the
/// copy -x gets -g, which makes the mean of g vanish, and +-a get g's that make the mean of g times x vanish.
Tensor padded_gradient(const std::vector<float>& dy, const std::vector<float>& x, const Tensor& wide_scale,
                       const PaddedRows& padded, const Sizes& s) {
  const std::vector<float> scale = to_vector(wide_scale);
  std::vector<float> wide(size_t(s.rows() * s.wide()));
  for (int64_t r = 0; r < s.rows(); ++r) {
    const size_t narrow_at = size_t(r * s.C), wide_at = size_t(r * s.wide()), scale_at = size_t(r / s.T * s.wide());
    double g_times_x = 0;
    for (size_t j = 0; j < size_t(s.C); ++j) {
      const double g = dy[narrow_at + j] * (1.0 + scale[scale_at + j]);
      g_times_x += g * x[narrow_at + j];
      wide[wide_at + j] = dy[narrow_at + j], wide[wide_at + size_t(s.C) + j] = -dy[narrow_at + j];
    }
    const float g_of_a = float(-g_times_x / padded.a[size_t(r)]);
    wide[wide_at + size_t(2 * s.C)] = g_of_a, wide[wide_at + size_t(2 * s.C) + 1] = -g_of_a;
  }
  return from_values({s.B, s.T, s.wide()}, wide);
}

/// The first C of each run of 2C + 2 values, times `factor`, a power of two.
std::vector<float> narrow(const Tensor& wide, const Sizes& s, double factor) {
  const std::vector<float> values = to_vector(wide);
  std::vector<float> first;
  for (size_t at = 0; at < values.size(); at += size_t(s.wide()))
    for (size_t j = 0; j < size_t(s.C); ++j) first.push_back(float(values[at + j] * factor));
  return first;
}

}  // namespace

void modulate(Operator& o) {
  const Shape shape = o.v.shape("modulate.x", 3), per_sample{shape[0], shape[2]};
  const Sizes s{shape[0], shape[1], shape[2]};
  const std::vector<float> x = to_vector(o.in("x", shape)), dy = to_vector(o.in("dy", shape));
  const PaddedRows padded(x, s);
  const Shape wide{s.B, s.T, s.wide()}, wide_per_sample{s.B, s.wide()};
  const ops::Chunk shift{widen(to_vector(o.in("shift", per_sample)), s, padded.R, false)};
  const ops::Chunk scale{widen(to_vector(o.in("scale", per_sample)), s, padded.R, true)};
  const Tensor wide_x = from_values(wide, padded.values), y(wide), dx(wide), mean({s.B, s.T}), rstd({s.B, s.T});
  const ops::Chunk dshift{Tensor(wide_per_sample)}, dscale{Tensor(wide_per_sample)};
  ops::layer_norm_modulate_forward(o.ctx, wide_x, shift, scale, y, mean, rstd);
  ops::layer_norm_modulate_backward(o.ctx, wide_x, mean, rstd, scale, padded_gradient(dy, x, scale.cond, padded, s), dx,
                                    dshift, dscale);
  o.out("y", shape, narrow(y, s, 1)), o.out("dx", shape, narrow(dx, s, 1));
  o.out("dshift", per_sample, narrow(dshift.cond, s, 1)), o.out("dscale", per_sample, narrow(dscale.cond, s, padded.R));
}

}  // namespace ditrain::verify
