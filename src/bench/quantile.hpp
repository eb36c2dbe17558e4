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

}  // namespace ditrain::bench
