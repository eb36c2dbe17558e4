// Statistics of a few repeats (seeds) of curves over time: bootstrap intervals, and when a curve reaches a value.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace ditrain::bench {

/// A number and a range.
struct Interval {
  double value = std::numeric_limits<double>::quiet_NaN(), low = value, high = value;
  bool contains(double x) const { return low <= x && x <= high; }
};
/// "1.23 [1.1, 1.4]", to three digits; "-" if it is not a number.
std::string text_of(const Interval& interval);

/// `statistic` of repeats 0 ... n - 1, and its 2.5 % and 97.5 % quantiles over resamples with replacement: percentile
/// bootstrap, with random numbers of a fixed seed. One repeat: no range, low = high = value. Of three repeats the range
/// of a mean is from the least to the most, which holds the true one three times out of four.
/// Source: Efron and Tibshirani 1993, chapter 13
Interval bootstrap(int64_t n, const std::function<double(const std::vector<size_t>& repeats)>& statistic);
Interval mean_of(const std::vector<double>& values);

struct CurvePoint {
  double minutes, cost;  ///< less cost is better
};
/// When a curve first costs `level` or less.
/// Math:     cost is linear in log(minutes) between points
/// Returns   infinity if it never does; the time of the first point if it does there, which is an upper bound
double crossing(const std::vector<CurvePoint>& curve, double level);

}  // namespace ditrain::bench
