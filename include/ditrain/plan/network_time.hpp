// Seconds that the sums of dist/engine take on a cluster, in closed form. All nodes take part at once, so links that
// several of them share are divided.
//
// The two-level sum of B bytes over n nodes of r ranks: ranks of a node read the others' part of their slice, the first
// ranks exchange slices, each rank copies the slices of the others. Math:
//   before, after   (r-1)/r B / inside
//   wire            2 x phase;  phase = max over levels l of m (n-m)/n B / uplinks(l),  m = min(n, nodes below l)
// A phase sends B/n from every node to every other one: m nodes below a switch send n - m of their n parts over its
// links up (l = -1: those of the node itself). On a tree that is not oversubscribed a phase is (n-1)/n B / node rate.
// Each phase adds the latency to the farthest node. The processor's cost of a message is not counted.
#pragma once
#include "ditrain/plan/platform.hpp"

namespace ditrain::plan {

/// The three parts of an operation, in their order.
struct TransferTime {
  double before_s = 0, wire_s = 0, after_s = 0;
  double total_s() const { return before_s + wire_s + after_s; }
};

class NetworkTime {
 public:
  NetworkTime(const Platform& platform, int ranks_per_node);

  /// Bytes are those of the whole bucket in f32; on the wire they are multiplied by `wire` (1/2 for bf16).
  TransferTime allreduce(double bytes, double wire = 1) const;
  /// Sums that are valid in the shard of each rank only.
  TransferTime reduce_scatter(double bytes, double wire = 1) const;
  /// Every rank gets the parts of all others.
  TransferTime allgather(double bytes) const;
  /// Sum over `ranks` of one node, by which ranks that share a replica add up activations: a ring in its memory.
  double node_sum_s(double bytes, int ranks) const;

 private:
  double inside_s(double bytes) const;
  double phase_s(double bytes) const;

  const Platform& platform_;
  const int ranks_;
};

}  // namespace ditrain::plan
