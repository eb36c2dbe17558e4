// For tests: the sets of features of the fixture fid_sets, which follow a formula.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "support/fixture.hpp"
#include "support/formula.hpp"

namespace ditrain::test {

struct FeatureSet {
  std::vector<float> values;  // [n, d]
  int64_t n, d;
};

/// Set 1 or 2 of "big" or "small", checked against the entries that the fixture stores.
inline FeatureSet fixture_set(const Fixture& file, const std::string& size, int which) {
  const std::vector<int64_t> shape = file.i64(size + ".shape");
  FeatureSet set{{}, shape[size_t(which - 1)], shape[2]};
  const std::string base = "sets." + size, own = base + "." + std::to_string(which);
  const Formula m(base + ".m"), b(base + ".b"), g(own + ".g"), e(own + ".e");
  std::vector<double> mean, slope;
  for (int64_t j = 0; j < set.d; ++j) {
    mean.push_back(0.5 + 0.3 * m.unit(uint64_t(j)));
    slope.push_back(0.5 * b.symmetric(uint64_t(j)));
  }
  set.values.reserve(size_t(set.n * set.d));
  for (int64_t i = 0; i < set.n; ++i) {
    for (int64_t j = 0; j < set.d; ++j) {
      const double s = g.symmetric(uint64_t(8 * i + j % 8)), factor = which == 1 ? s : 0.8 * s + 0.15;
      const double x = (mean[size_t(j)] + 0.04 * e.symmetric(uint64_t(i * set.d + j))) + slope[size_t(j)] * factor;
      set.values.push_back(float(std::max(0.0, x)));
    }
  }
  const std::vector<float> check = file.f32(size + "." + std::to_string(which) + ".check");
  for (int64_t j = 0; j < 8; ++j) {
    if (check[size_t(j)] != set.values[size_t(j)] ||
        check[size_t(8 + j)] != set.values[size_t((set.n - 1) * set.d + j)])
      throw std::runtime_error("the formula does not give the fixture's features");
  }
  return set;
}

}  // namespace ditrain::test
