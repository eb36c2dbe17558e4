// Loss curves as people compare them: smoothed.
#pragma once
#include <numeric>
#include <string>
#include <vector>

#include "run.hpp"

namespace ditrain::e2e {

/// Means of `window` successive values, one for each place of the window.
inline std::vector<double> moving_average(const std::vector<double>& x, size_t window) {
  std::vector<double> means;
  for (size_t i = window; i <= x.size(); ++i)
    means.push_back(std::accumulate(x.begin() + int64_t(i - window), x.begin() + int64_t(i), 0.0) / double(window));
  return means;
}

/// The losses of a run, smoothed.
inline std::vector<double> smoothed_loss(const std::string& out, size_t window) {
  return moving_average(column(read_metrics(out), "loss"), window);
}

}  // namespace ditrain::e2e
