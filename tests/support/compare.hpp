// For tests: comparing arrays with a report.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace ditrain::test {

/// Result of a comparison; CHECK(compare(...)) prints it when it fails.
struct Comparison {
  bool passed = false;
  std::string text;
  explicit operator bool() const { return passed; }
};
inline std::ostream& operator<<(std::ostream& out, const Comparison& c) { return out << c.text; }

inline double max_abs(std::span<const double> values) {
  double largest = 0;
  for (const double v : values) largest = std::max(largest, std::abs(v));
  return largest;
}

/// Passes if every |got - want| <= tolerance * scale and nothing is NaN; scale < 0: max |want| (1 if that is 0).
/// The text has max abs, max rel, the worst index, both values there and the number of NaNs.
inline Comparison compare(std::span<const double> got, std::span<const double> want, double tolerance,
                          double scale = -1) {
  if (got.size() != want.size() || want.empty()) {
    return {false, "got " + std::to_string(got.size()) + " values, expected " + std::to_string(want.size())};
  }
  if (scale < 0) scale = max_abs(want) > 0 ? max_abs(want) : 1;
  size_t worst = 0, nans = 0;
  double worst_abs = -1, worst_rel = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(got[i] - want[i]);
    if (std::isnan(error)) ++nans;
    if (error > worst_abs) worst_abs = error, worst = i;
    if (want[i] != 0 && error / std::abs(want[i]) > worst_rel) worst_rel = error / std::abs(want[i]);
  }
  std::ostringstream text;
  text.precision(9);
  text << "max abs " << worst_abs << " at [" << worst << "]: got " << got[worst] << ", expected " << want[worst]
       << "; max rel " << worst_rel << "; allowed " << tolerance * scale << " (" << tolerance << " x scale " << scale
       << "); " << nans << " NaN of " << want.size();
  return {nans == 0 && worst_abs <= tolerance * scale, text.str()};
}

/// |got - want| / |scale| in Euclidean norms; infinity for arrays of other sizes.
template <class T>
double relative_l2(const std::vector<T>& got, const std::vector<T>& want, const std::vector<T>& scale) {
  if (got.size() != want.size() || want.empty()) return std::numeric_limits<double>::infinity();
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) error += std::pow(double(got[i]) - double(want[i]), 2);
  for (const T x : scale) size += double(x) * double(x);
  return std::sqrt(error / size);
}
template <class T>
double relative_l2(const std::vector<T>& got, const std::vector<T>& want) {
  return relative_l2(got, want, want);
}

template <class T>
std::vector<double> to_f64(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

}  // namespace ditrain::test
