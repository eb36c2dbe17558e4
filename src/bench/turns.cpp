#include "turns.hpp"

#include <cmath>
#include <utility>

#include "ditrain/base/clock.hpp"
#include "stop.hpp"

namespace ditrain::bench {

double quantile(std::vector<double> x, double q) {
  if (x.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(x.begin(), x.end());
  return x[std::min(x.size() - 1, size_t(q * double(x.size())))];
}

double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) ratios.push_back(a[i] / b[i]);
  return quantile(ratios, 0.5);
}

size_t nearest(const std::vector<double>& all, double x) {
  const auto nearer = [&](double a, double b) { return std::fabs(a - x) < std::fabs(b - x); };
  return size_t(std::min_element(all.begin(), all.end(), nearer) - all.begin());
}

Timing timing_of(const std::vector<double>& seconds) {
  return {quantile(seconds, 0.5), quantile(seconds, 0), quantile(seconds, 0.9), int64_t(seconds.size())};
}

Row timed_row(std::string name, std::string dtype, const std::vector<double>& seconds) {
  return {.name = std::move(name),
          .dtype = std::move(dtype),
          .time = timing_of(seconds),
          .share = std::numeric_limits<double>::quiet_NaN()};
}

double seconds_of(const std::function<void()>& call) {
  const double start = now_s();
  call();
  return now_s() - start;
}

void take_turns(std::vector<Contender>& contenders, int64_t rounds, dist::Communicator* ranks) {
  for (int64_t round = -1; round < rounds; ++round)
    for (Contender& c : contenders) {
      if (c.before) c.before();
      if (ranks != nullptr) ranks->barrier();
      const double own_s = seconds_of(c.call);
      double told[] = {own_s, stop_requested() ? 1.0 : 0.0};  // all ranks stop at the same turn
      if (ranks != nullptr) ranks->allreduce_max(told, 2);
      if (told[1] > 0) throw Stopped();
      const double seconds = told[0];
      if (round < 0) continue;
      c.seconds.push_back(seconds);
      if (c.after) c.after(seconds);
    }
}

}  // namespace ditrain::bench
