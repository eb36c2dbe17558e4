#include "ditrain/plan/network_time.hpp"

#include <algorithm>

namespace ditrain::plan {

NetworkTime::NetworkTime(const Platform& platform, int ranks_per_node) : platform_(platform), ranks_(ranks_per_node) {}

TransferTime NetworkTime::allreduce(double bytes, double wire) const {
  return {.before_s = inside_s(bytes), .wire_s = 2 * phase_s(bytes * wire), .after_s = inside_s(bytes)};
}

TransferTime NetworkTime::reduce_scatter(double bytes, double wire) const {
  return {.before_s = inside_s(bytes), .wire_s = phase_s(bytes * wire), .after_s = 0};
}

TransferTime NetworkTime::allgather(double bytes) const {
  return {.before_s = 0, .wire_s = phase_s(bytes), .after_s = inside_s(bytes)};
}

double NetworkTime::node_sum_s(double bytes, int ranks) const {
  if (ranks == 1) return 0;
  return 2 * (ranks - 1) * (bytes / ranks / platform_.bytes_per_s(-1) + platform_.latency_s(-1));
}

double NetworkTime::inside_s(double bytes) const {
  if (ranks_ == 1) return 0;
  return double(ranks_ - 1) / ranks_ * bytes / platform_.bytes_per_s(-1) + platform_.latency_s(-1);
}

double NetworkTime::phase_s(double bytes) const {
  const double n = platform_.nodes;
  if (n == 1) return 0;
  double slowest = 0;
  const int top = platform_.level_between(0, platform_.nodes - 1);
  for (int level = -1; level < top; ++level) {
    const double below = std::min(n, double(platform_.nodes_below(level)));
    slowest = std::max(slowest, below * (n - below) / n * bytes / platform_.uplink_bytes_per_s(level));
  }
  return slowest + platform_.latency_s(top);
}

}  // namespace ditrain::plan
