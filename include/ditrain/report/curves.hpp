// Curves over steps, of any length in bounded memory: each interval of steps keeps minimum, maximum and mean. When
// there are too many intervals, neighbours are joined.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ditrain::report {

class Curves {
 public:
  static constexpr int64_t kMaxIntervals = 2000;
  static constexpr size_t kMaxCurves = 64;  ///< files may name any number; later names are left out

  struct Interval {
    double low = 0, high = 0, sum = 0;
    int64_t count = 0;  ///< 0: no value
    int64_t last = 0;   ///< step of its last value
  };

  /// Values that are not finite, and steps before the first one, are left out.
  void add(int64_t step, const std::string& name, double value);

  int64_t width() const { return width_; }  ///< steps per interval
  /// Intervals of a curve from the first step on; empty for a name that is not known.
  const std::vector<Interval>& of(const std::string& name) const;
  const std::map<std::string, std::vector<Interval>>& all() const { return curves_; }
  double sum(const std::string& name) const;  ///< of all values

  /// {"first": step, "width": steps, "series": {NAME: {"at": [step], "mean", "low", "high": [...]}}}: numbers have
  /// five digits; "at", the last steps of the intervals that have a value, is left out where none lacks one, low and
  /// high where width is 1.
  /// Curves whose names `skip` accepts, and those that are 0 everywhere, are left out.
  nlohmann::json to_json(bool (*skip)(const std::string& name)) const;

 private:
  void halve();

  int64_t first_ = -1, width_ = 1;
  std::map<std::string, std::vector<Interval>> curves_;
};

}  // namespace ditrain::report
