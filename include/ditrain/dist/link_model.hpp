// A link between hosts to pretend, so that what overlap gains can be measured on one machine.
#pragma once

namespace ditrain::dist {

/// A sum of gradients is held back until a ring all-reduce over this link would have delivered it, what is gathered for
/// half as long.
struct LinkModel {
  double gbit_s = 10;      ///< 10^9 bits per second and direction
  double latency_us = 20;  ///< of one message
  int hosts = 2;

  /// Math:     2 (hosts-1) latency + 2 (hosts-1)/hosts bytes / bandwidth
  double seconds(double bytes) const;
};

}  // namespace ditrain::dist
