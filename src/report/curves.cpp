#include "ditrain/report/curves.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace ditrain::report {
namespace {

constexpr int64_t kMaxStep = int64_t{1} << 53;

void join(Curves::Interval& into, const Curves::Interval& other) {
  if (other.count == 0) return;
  into.low = into.count == 0 ? other.low : std::min(into.low, other.low);
  into.high = into.count == 0 ? other.high : std::max(into.high, other.high);
  into.sum += other.sum, into.count += other.count, into.last = std::max(into.last, other.last);
}

// JSON prints the shortest number that reads back as the same: a rounded one is short.
double with_five_digits(double value) { return std::strtod(fmt::format("{:.5g}", value).c_str(), nullptr); }

}  // namespace

void Curves::add(int64_t step, const std::string& name, double value) {
  if (first_ < 0) first_ = std::max<int64_t>(step, 0);
  if (!std::isfinite(value) || step < first_ || step > kMaxStep) return;
  auto curve = curves_.find(name);
  if (curve == curves_.end()) {
    if (curves_.size() == kMaxCurves) return;
    curve = curves_.emplace(name, std::vector<Interval>()).first;
  }
  while ((step - first_) / width_ >= kMaxIntervals) halve();
  const auto at = size_t((step - first_) / width_);
  std::vector<Interval>& intervals = curve->second;
  if (intervals.size() <= at) intervals.resize(at + 1);
  join(intervals[at], {value, value, value, 1, step});
}

void Curves::halve() {
  width_ *= 2;
  for (auto& [name, intervals] : curves_) {
    for (size_t i = 0; i < intervals.size(); ++i) {
      const Interval old = std::exchange(intervals[i], Interval());
      join(intervals[i / 2], old);
    }
    intervals.resize((intervals.size() + 1) / 2);
  }
}

const std::vector<Curves::Interval>& Curves::of(const std::string& name) const {
  static const std::vector<Interval> kNone;
  const auto curve = curves_.find(name);
  return curve == curves_.end() ? kNone : curve->second;
}

double Curves::sum(const std::string& name) const {
  double sum = 0;
  for (const Interval& interval : of(name)) sum += interval.sum;
  return sum;
}

nlohmann::json Curves::to_json(bool (*skip)(const std::string& name)) const {
  nlohmann::json series = nlohmann::json::object();
  for (const auto& [name, intervals] : curves_) {
    const bool zero =
        std::all_of(intervals.begin(), intervals.end(), [](const Interval& i) { return i.low == 0 && i.high == 0; });
    if (zero || skip(name)) continue;
    nlohmann::json at = nlohmann::json::array(), mean = at, low = at, high = at;
    for (const Interval& interval : intervals) {
      if (interval.count == 0) continue;
      at.push_back(interval.last), mean.push_back(with_five_digits(interval.sum / double(interval.count)));
      low.push_back(with_five_digits(interval.low)), high.push_back(with_five_digits(interval.high));
    }
    nlohmann::json& curve = series[name];
    if (at.size() < intervals.size()) curve["at"] = std::move(at);
    curve["mean"] = std::move(mean);
    if (width_ > 1) curve["low"] = std::move(low), curve["high"] = std::move(high);
  }
  return {{"first", std::max<int64_t>(first_, 0)}, {"width", width_}, {"series", std::move(series)}};
}

}  // namespace ditrain::report
