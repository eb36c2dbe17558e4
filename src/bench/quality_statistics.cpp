#include "quality_statistics.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "ditrain/base/error.hpp"
#include "ditrain/base/random.hpp"
#include "turns.hpp"

namespace ditrain::bench {
namespace {

constexpr int64_t kResamples = 2000;
constexpr uint64_t kSeed = 41;
constexpr double kTail = 0.025;

}  // namespace

std::string text_of(const Interval& i) {
  if (std::isnan(i.value)) return "-";
  if (i.low == i.high) return fmt::format("{:.3g}", i.value);
  return fmt::format("{:.3g} [{:.3g}, {:.3g}]", i.value, i.low, i.high);
}

Interval bootstrap(int64_t n, const std::function<double(const std::vector<size_t>&)>& statistic) {
  DITRAIN_CHECK(n >= 1, "at least one repeat");
  std::vector<size_t> repeats(static_cast<size_t>(n));
  std::iota(repeats.begin(), repeats.end(), size_t{0});
  const double value = statistic(repeats);
  if (n == 1 || std::isnan(value)) return {value, value, value};
  std::vector<double> of_resamples;
  for (int64_t r = 0; r < kResamples; ++r) {
    const RandomKey key(kSeed, Stream::kResample, uint64_t(r));
    for (size_t i = 0; i < repeats.size(); ++i) repeats[i] = size_t(key.below(i, uint64_t(n)));
    of_resamples.push_back(statistic(repeats));
  }
  return {value, quantile(of_resamples, kTail), quantile(of_resamples, 1 - kTail)};
}

Interval mean_of(const std::vector<double>& values) {
  return bootstrap(int64_t(values.size()), [&](const std::vector<size_t>& repeats) {
    double sum = 0;
    for (const size_t i : repeats) sum += values[i];
    return sum / double(repeats.size());
  });
}

double crossing(const std::vector<CurvePoint>& curve, double level) {
  for (size_t i = 0; i < curve.size(); ++i) {
    if (!(curve[i].cost <= level)) continue;
    if (i == 0) return curve[0].minutes;
    const CurvePoint &a = curve[i - 1], &b = curve[i];
    const double share = (a.cost - level) / (a.cost - b.cost);
    return a.minutes * std::pow(b.minutes / a.minutes, share);
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace ditrain::bench
