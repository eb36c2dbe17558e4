// Order statistics of timings.
#pragma once
#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace ditrain::bench {

/// The element of which a share q of the others is smaller: 0 the least, 0.5 the (upper) median; NaN of nothing.
inline double quantile(std::vector<double> x, double q) {
  if (x.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(x.begin(), x.end());
  return x[std::min(x.size() - 1, size_t(q * double(x.size())))];
}

/// Median over the rounds of a / b.
inline double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) ratios.push_back(a[i] / b[i]);
  return quantile(ratios, 0.5);
}

}  // namespace ditrain::bench
