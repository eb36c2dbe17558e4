// A simulated link between hosts, so that the gain of overlap can be measured on one machine.
#pragma once

namespace ditrain::dist {

/// Delays an all-reduce until a ring all-reduce over this link would have ended, and an all-gather by half of that
/// time.
struct LinkModel {
  double gbit_s = 10;      ///< 10^9 bits per second and direction
  double latency_us = 20;  ///< per message
  int hosts = 2;

  /// Time of an all-reduce of `bytes`.
  /// Math:     2 (hosts-1) latency + 2 (hosts-1)/hosts bytes / bandwidth
  double seconds(double bytes) const;
};

}  // namespace ditrain::dist
