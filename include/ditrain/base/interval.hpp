// A recurring interval of time, such as the time between checkpoints.
#pragma once
#include <functional>
#include <utility>

#include "ditrain/base/clock.hpp"

namespace ditrain {

class Interval {
 public:
  /// seconds: 0: never over.
  explicit Interval(double seconds, std::function<double()> clock = now_s)
      : seconds_(seconds), clock_(std::move(clock)), start_s_(clock_()) {}
  bool is_on() const { return seconds_ > 0; }
  void restart() { start_s_ = clock_(); }
  /// Whether it is over, or will be in `ahead_s`.
  bool is_over(double ahead_s = 0) const { return is_on() && left_s() <= ahead_s; }
  double left_s() const { return start_s_ + seconds_ - clock_(); }

 private:
  double seconds_;
  std::function<double()> clock_;
  double start_s_;
};

}  // namespace ditrain
