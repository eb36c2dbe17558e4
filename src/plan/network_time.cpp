#include "ditrain/plan/network_time.hpp"

#include <algorithm>

namespace ditrain::plan {

NetworkTime::NetworkTime(const ClusterDescription& platform, int ranks_per_node)
    : platform_(platform), ranks_(ranks_per_node) {}

TransferTime NetworkTime::allreduce(double bytes, double wire) const {
  return {.before_s = inside_s(bytes), .wire_s = 2 * phase_s(bytes * wire), .after_s = inside_s(bytes)};
}

TransferTime NetworkTime::reduce_scatter(double bytes, double wire) const {
  return {.before_s = inside_s(bytes), .wire_s = phase_s(bytes * wire), .after_s = 0};
}

TransferTime NetworkTime::allgather(double bytes) const {
  return {.before_s = 0, .wire_s = phase_s(bytes), .after_s = inside_s(bytes)};
}

TransferTime NetworkTime::flat_allreduce(double bytes) const {
  TransferTime time;
  const int64_t all = int64_t(platform_.nodes) * ranks_;
  for (int64_t distance = 1; distance < all; distance *= 2) {
    if (distance < ranks_) {
      const double hop_s = bytes / platform_.bytes_per_s(-1) + platform_.latency_s(-1);
      time.before_s += hop_s, time.after_s += hop_s;
      continue;
    }
    const int64_t nodes = distance / ranks_, receivers = std::min(distance, all - distance);
    const int top = platform_.level_between(0, int(std::max<int64_t>(1, nodes)));
    // Senders are the first ranks of all; a node has as many of them as it has ranks.
    const double per_node = double(std::min<int64_t>(ranks_, receivers));
    const double nodes_that_send = std::max(1.0, double(receivers) / ranks_);
    time.wire_s += bytes / platform_.bytes_per_s(top) + platform_.latency_s(top);
    time.wire_s += slowest_s(top, nodes_that_send, per_node * bytes) + platform_.latency_s(top);
  }
  return time;
}

/// Seconds until that many neighbouring nodes have sent these bytes each to nodes below other switches.
double NetworkTime::slowest_s(int top, double senders, double bytes) const {
  double slowest = 0;
  for (int level = -1; level < top; ++level) {
    const double below = std::min(senders, double(platform_.nodes_below(level)));
    slowest = std::max(slowest, below * bytes / platform_.uplink_bytes_per_s(level));
  }
  return slowest;
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
