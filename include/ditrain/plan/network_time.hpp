// Predicts, in closed form, how long the all-reduce of dist/engine takes on a cluster. All nodes take part at once, so
// nodes that share a link share its rate.
//
// The two-level sum of B bytes over n nodes of r ranks: each rank of a node sums its slice over the node's ranks, the
// first ranks of the nodes exchange slices, then each rank copies the slices of the others. Math:
//   before, after   (r-1)/r B / inside
//   wire            2 x phase;  phase = max over levels l of m (n-m)/n B / uplinks(l),  m = min(n, nodes below l)
// In a phase every node sends B/n to every other one: the m nodes below a switch send n - m of their n parts over its
// uplinks (l = -1: the links of the node itself). On a tree that is not oversubscribed a phase takes (n-1)/n B / node
// rate. Each phase adds the latency to the farthest node. The processor time per message is not counted.
//
// The flat sum (dist.allreduce: flat) is what Open MPI (4 and 5) makes of an MPI_Iallreduce in place:
// along a binomial tree, whole buckets go to the first rank and back again, in rounds k = 0, 1, ... over 2^k ranks.
// Ranks are numbered node by node.
//   up              one message from every second node at most:      B / rate of two nodes that far apart
//   down            all ranks that have the sum send at once:        max over levels l of m r B / uplinks(l)
// The simulated `ring` of ditbench scale is another algorithm over all ranks.
#pragma once
#include "ditrain/plan/cluster_description.hpp"

namespace ditrain::plan {

/// The three parts of an operation, in the order in which they run.
struct TransferTime {
  double before_s = 0, wire_s = 0, after_s = 0;
  double total_s() const { return before_s + wire_s + after_s; }
};

class NetworkTime {
 public:
  NetworkTime(const ClusterDescription& platform, int ranks_per_node);

  /// An all-reduce of `bytes`, the whole bucket in f32; on the wire they are multiplied by `wire` (1/2 for bf16).
  TransferTime allreduce(double bytes, double wire = 1) const;
  /// A reduce-scatter: each rank gets the sums of its shard only.
  TransferTime reduce_scatter(double bytes, double wire = 1) const;
  /// An all-gather: every rank gets the parts of all others; `bytes` is the whole.
  TransferTime allgather(double bytes) const;
  /// The flat all-reduce as MPI makes it of the whole bucket, always in f32.
  TransferTime flat_allreduce(double bytes) const;
  /// The sum of activations over `ranks` ranks of one node that share a replica: a ring in its memory.
  double node_sum_s(double bytes, int ranks) const;

 private:
  double inside_s(double bytes) const;
  double phase_s(double bytes) const;
  double slowest_s(int top, double senders, double bytes) const;

  const ClusterDescription& platform_;
  const int ranks_;
};

}  // namespace ditrain::plan
