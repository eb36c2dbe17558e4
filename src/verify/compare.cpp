#include "ditrain/verify/compare.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ditrain/base/error.hpp"

namespace ditrain::verify {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Error in units of the scale; a scale of 0 asks for equality.
double relative_error(double error, double scale) {
  if (std::isnan(error)) return kInfinity;
  if (scale > 0) return error / scale;
  return error == 0 ? 0 : kInfinity;
}

}  // namespace

Comparison compare(std::span<const double> got, std::span<const double> want, double tolerance,
                   std::span<const double> scales) {
  DITRAIN_CHECK(!want.empty() && got.size() == want.size(), "both sides have the same number of entries");
  DITRAIN_CHECK(!scales.empty() && want.size() % scales.size() == 0, "scales belong to equal pieces");
  const size_t piece = want.size() / scales.size();
  Comparison c{.tensor = {}, .quantity = {}, .max_rel = -1, .tolerance = tolerance};
  for (size_t i = 0; i < want.size(); ++i) {
    const double scale = scales[i / piece];
    const bool finite = std::isfinite(got[i]) && std::isfinite(want[i]);
    const double error = finite ? std::abs(got[i] - want[i]) : kInfinity, relative = relative_error(error, scale);
    c.nan_count += finite ? 0 : 1;
    c.max_abs = std::max(c.max_abs, error);
    if (relative > c.max_rel) {
      c.max_rel = relative, c.scale = scale, c.index = int64_t(i), c.got = got[i], c.want = want[i];
    }
  }
  c.passed = c.nan_count == 0 && c.max_rel <= tolerance;
  return c;
}

Comparison compare_l2(std::span<const double> got, std::span<const double> want, double tolerance) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) error += (got[i] - want[i]) * (got[i] - want[i]), norm += want[i] * want[i];
  Comparison c = compare(got, want, tolerance, std::vector<double>{std::sqrt(norm / double(want.size()))});
  c.max_rel = relative_error(std::sqrt(error), std::sqrt(norm));
  c.passed = c.nan_count == 0 && c.max_rel <= tolerance;
  return c;
}

std::vector<double> piece_scales(std::span<const double> want, int64_t rows) {
  DITRAIN_CHECK(rows > 0 && want.size() % size_t(rows) == 0, "equal pieces");
  const size_t piece = want.size() / size_t(rows);
  std::vector<double> scales(size_t(rows), 0.0);
  for (size_t i = 0; i < want.size(); ++i) scales[i / piece] = std::max(scales[i / piece], std::abs(want[i]));
  std::replace(scales.begin(), scales.end(), 0.0, 1.0);
  return scales;
}

std::vector<double> entry_scales(std::span<const double> want) { return piece_scales(want, int64_t(want.size())); }

}  // namespace ditrain::verify
