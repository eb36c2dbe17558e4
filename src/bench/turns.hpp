// Seconds of calls: their order statistics, rows of them, and ways to do the same work that take turns.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "ditrain/bench/report.hpp"
#include "ditrain/dist/communicator.hpp"

namespace ditrain::bench {

/// The element of which a share q of the others is smaller: 0 the least, 0.5 the (upper) median; NaN of nothing.
double quantile(std::vector<double> x, double q);
/// Median over the rounds of a / b.
double median_ratio(const std::vector<double>& a, const std::vector<double>& b);

/// Which of them is nearest to x.
size_t nearest(const std::vector<double>& all, double x);

Timing timing_of(const std::vector<double>& seconds);
/// A row that nothing limits.
Row timed_row(std::string name, std::string dtype, const std::vector<double>& seconds);

/// One of several ways to do the same work.
struct Contender {
  std::string name;
  std::function<void()> call;
  std::function<void()> before = {};               ///< called before each turn, not timed
  std::function<void(double seconds)> after = {};  ///< called after a turn that counts
  std::vector<double> seconds = {};                ///< of the turns that count

  /// Median over the rounds of our time / theirs.
  double ratio_to(const Contender& other) const { return median_ratio(seconds, other.seconds); }
};

/// Seconds of a call.
double seconds_of(const std::function<void()>& call);

/// Calls all of them in turn, in a first round that does not count, as it pays for page faults, and then in `rounds`
/// that do. With `ranks` (collective then) the seconds are those of the slowest, from a barrier on.
/// Errors:   Stopped on all ranks after a signal to one of them
void take_turns(std::vector<Contender>& contenders, int64_t rounds, dist::Communicator* ranks = nullptr);

}  // namespace ditrain::bench
