// Checks the nodes of a run before it starts: how fast each computes, reads its memory and reaches its neighbour, which
// cores ranks have, how far clocks differ, and how much disk and memory is free. A slow node delays all others in every
// step; the preflight names it before hours are lost.
//
//   mpirun -np 64 ditrain --preflight --config configs/dit_xl2.yaml --out /scratch/run
#pragma once
#include <string>
#include <vector>

#include "ditrain/config/config.hpp"
#include "ditrain/dist/communicator.hpp"

namespace ditrain::train {

/// Measurements of one node, with all of its ranks working at once.
struct NodeFacts {
  std::string host = {};
  int ranks = 1;
  int cores_of_rank = 1;       ///< of the rank that has fewest
  double gemm_gflops = 0;      ///< of all ranks together, in the precision of the config
  double memory_gb_s = 0;      ///< read by all ranks together
  double link_gbit_s = 0;      ///< to a neighbour and from it at once, the better of two; 0: there is only one node
  double latency_us = 0;       ///< of a message from the first node; 0 on the first node
  double clock_s = 0;          ///< time of day minus that of the first node
  double free_memory_gib = 0;  ///< unused memory and cached files that can be dropped; 0: unknown
  double free_disk_gib = 0;    ///< where the run folder will be; 0: unknown
};

/// The node with which a node exchanges messages in a round of link measurements; -1: none. Nodes pair with the next
/// and the previous node in turns; with an odd number of nodes a third round pairs the last with the first. With three
/// nodes or more each has two partners, and counts as slow only if both links are slow.
int link_rounds(int num_nodes);
int link_partner(int node, int round, int num_nodes);

struct PreflightVerdict {
  std::vector<double> shares = {};  ///< of each node: its lowest rate, as a share of the median of all nodes
  std::vector<std::string> slow_hosts = {};
  std::vector<std::string> problems = {};  ///< a line each; the slow nodes' first
};
/// Finds slow nodes, those with a rate below `slow_share` of the median of all nodes, and other problems: clocks that
/// differ by more than kMostClockSkew_s, and a disk without space for `checkpoints_gib`.
inline constexpr double kSlowShare = 0.85, kMostClockSkew_s = 2;
PreflightVerdict find_problems(const std::vector<NodeFacts>& nodes, double checkpoints_gib,
                               double slow_share = kSlowShare);

/// For scripts: {"nodes": [{"host", what was measured, "share", "slow"}, a line each], "slow": [], "problems": []}
std::string to_json(const std::vector<NodeFacts>& nodes, const PreflightVerdict& verdict);

struct PreflightOptions {
  double seconds = 1;  ///< duration of each measurement
  double slow_share = kSlowShare;
  std::string json = {};  ///< a file that rank 0 writes; empty: none
};

/// Measures all nodes and prints a table with the verdict on rank 0. Collective. Returns true if there is no problem.
/// Errors:   InputError if the launcher gives ranks one core each and the node has more for them; RunError if the JSON
///           file cannot be written; as plan_placement
bool run_preflight(const config::Config& config, const std::string& out, dist::Communicator& comm,
                   const PreflightOptions& options = {});

}  // namespace ditrain::train
