// The description of a cluster for plans and simulations: dies with their rates and memory, the link between the dies
// of a node, and the tree of switches above the nodes. It is read from a file in configs/platforms; nothing is measured
// here.
//
// A node has one link to each plane of the network; all planes are the same tree. A switch of level 0 has `down` nodes
// below it, a switch of level l `down` switches of level l - 1, and `up` links to the level above. `gbit_per_s` and
// `latency_us` are those of each link from level l to what is below it, so those of level 0 belong to the nodes.
//
//   const ClusterDescription cluster = load_cluster("platforms/fat_tree_200g.yaml");
//   const double s = cluster.latency_s(cluster.level_between(0, 40)) + bytes / cluster.bytes_per_s(1);
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/base/dtype.hpp"

namespace ditrain::plan {

/// The part of a node that one rank has in the usual placement: a socket, or a part of one with its own memory.
struct Die {
  int cores = 1;
  int threads_per_core = 1;    ///< hardware threads, which batch systems count
  double flop_f32_per_s = 0;   ///< peak of fused multiply-adds, FLOP/s
  double flop_bf16_per_s = 0;  ///< the same in bf16; 0: the die has no bf16 products
  double share = 0;            ///< share of the peak that training reaches, 0 to 1
  double memory_gb = 0;        ///< 10^9 bytes of the fastest memory
  double memory_gb_per_s = 0;  ///< its bandwidth, 10^9 bytes per second
  double bulk_gb = 0;          ///< 10^9 bytes of slower memory beside it; 0: there is only one kind
  /// FLOP/s that training reaches. Errors: InputError for bf16 on a die without it
  double training_flop_per_s(DType precision) const;
};

/// The link between two dies of a node, through its memory, in each direction.
struct NodeLink {
  double gb_per_s = 0;  ///< 10^9 bytes per second
  double latency_us = 0;
};

struct TreeLevel {
  int down = 1;           ///< children of a switch
  int up = 0;             ///< links of a switch to the level above; 0 at the top
  double gbit_per_s = 0;  ///< 10^9 bits per second and direction of each link to a child
  double latency_us = 0;  ///< of one such link and its switch
};

struct ClusterDescription {
  std::string name;
  int nodes = 1;
  int dies_per_node = 1;
  Die die = {};
  NodeLink inside = {};
  std::vector<TreeLevel> tree = {};  ///< from the nodes upward; empty with one node
  int planes = 1;

  int ranks() const { return nodes * dies_per_node; }
  int num_levels() const { return int(tree.size()); }
  /// Nodes below a switch of a level; `level` -1 is a node.
  int64_t nodes_below(int level) const;
  /// The lowest level whose switch has both nodes below it; -1: they are the same.
  int level_between(int node_a, int node_b) const;
  /// Bytes per second and direction of a node, over all planes.
  double node_bytes_per_s() const;
  /// Bytes per second of all links between a switch of a level and the level above, over all planes; `level` -1: of the
  /// links of a node. It is the rate of the links, even if the nodes below cannot use all of it.
  double uplink_bytes_per_s(int level) const;
  /// Bytes per second between two nodes whose path goes up to `level` (-1: the same node), without other traffic.
  double bytes_per_s(int level) const;
  /// Latency in seconds between two such nodes, over the links up and down again; -1: inside a node.
  double latency_s(int level) const;
  /// Sum of the rates of the nodes below a switch / rate of its uplinks, at least 1; 1 means not oversubscribed. 1 for
  /// the top level.
  double oversubscription(int level) const;
  /// The same cluster with fewer nodes. Errors: InputError "[platform] ..." for more than it has, or none
  ClusterDescription with_nodes(int64_t count) const;
};

/// Parses the text of a description. Keys, with defaults in brackets:
///   name, nodes, dies_per_node, planes [1]
///   die: cores, threads_per_core [1], tflop_f32_per_s, tflop_bf16_per_s [0], share, memory_gb, memory_gb_per_s,
///        bulk_gb [0]
///   inside: gb_per_s, latency_us
///   tree: a list from the nodes upward of down, up [0], gbit_per_s, latency_us
/// Errors:   InputError "[config] FILE:LINE: ..." for unknown or missing keys, numbers out of range, more than
///           2^24 dies in all, a tree with places for fewer nodes than there are, uplinks at its top, or none below
ClusterDescription parse_cluster(const std::string& text, const std::string& file_name);
/// Reads a file, looked up in the working directory, then among the installed configs.
/// Errors:   as parse_cluster, and InputError with the places looked at if there is no such file
ClusterDescription load_cluster(const std::string& path);

/// A paragraph: nodes, dies, rates, tree.
std::string describe(const ClusterDescription& platform);

}  // namespace ditrain::plan
