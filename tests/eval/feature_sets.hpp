// For tests: two sets of features by formula, those that the fixture fid_sets calls small.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "support/formula.hpp"

namespace ditrain::test {

struct FeatureSet {
  std::vector<float> values;  // [n, d]
  int64_t n, d;
};

inline FeatureSet feature_set(int which) {
  FeatureSet set{{}, 256, 192};
  const std::string base = "sets.small", own = base + "." + std::to_string(which);
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
  return set;
}

}  // namespace ditrain::test
