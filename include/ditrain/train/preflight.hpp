// A look at the nodes of a run before it starts: how fast each computes, reads its memory and reaches its neighbour,
// which cores ranks have, how far clocks differ, and what disk and memory have left. A node that is slow holds up all
// others in every step; here it is named before hours are lost.
//
//   mpirun -np 64 ditrain --preflight --config configs/dit_xl2.yaml --out /scratch/run
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/config/config.hpp"
#include "ditrain/dist/communicator.hpp"

namespace ditrain::train {

/// What was measured on a node, with all its ranks at work at once.
struct NodeFacts {
  std::string host = {};
  int ranks = 1;
  int cores_of_rank = 1;       ///< of the rank that has fewest
  double gemm_gflops = 0;      ///< of all ranks together, in the precision of the config
  double memory_gb_s = 0;      ///< read by all ranks together
  double link_gbit_s = 0;      ///< to a neighbour and from it at once, the better of two; 0: there is one node
  double latency_us = 0;       ///< of a message from the first node; 0 on the first one
  double clock_s = 0;          ///< the clock of the day, minus that of the first node
  double free_memory_gib = 0;  ///< not used, or used for files that can be dropped; 0: unknown
  double free_disk_gib = 0;    ///< where the run folder will be
};

/// Whom a node sends to and receives from in each round of measuring links: the next node or the one before, in turns,
/// and with an odd number of nodes the last and the first one in a third round. Each of three nodes or more has two
/// partners, so that it is slow only if both of its links are (as they are between two slow nodes). -1: nobody.
int link_rounds(int num_nodes);
int link_partner(int node, int round, int num_nodes);

struct PreflightVerdict {
  std::vector<double> shares = {};  ///< of each node: its lowest rate, as a share of the median of all nodes
  std::vector<std::string> slow_hosts = {};
  std::vector<std::string> problems = {};  ///< a line each; the slow nodes' first
};
/// A node is slow if a rate is below `slow_share` of the median of all nodes. Other problems: clocks that differ by
/// more than kMostClockSkew_s, and a disk that has no room for `checkpoints_gib`.
inline constexpr double kSlowShare = 0.85, kMostClockSkew_s = 2;
PreflightVerdict judge(const std::vector<NodeFacts>& nodes, double checkpoints_gib, double slow_share = kSlowShare);

/// For scripts: {"nodes": [{"host", what was measured, "share", "slow"}, a line each], "slow": [], "problems": []}
std::string to_json(const std::vector<NodeFacts>& nodes, const PreflightVerdict& verdict);

struct PreflightOptions {
  double seconds = 1;  ///< that each measurement takes
  double slow_share = kSlowShare;
  std::string json = {};  ///< a file that rank 0 writes; empty: none
};

/// Collective: measures, prints a table with the verdict on rank 0. Returns whether nothing is wrong.
/// Errors:   InputError where the launcher gives ranks one core each and the node has more for them; as plan_placement
bool run_preflight(const config::Config& config, const std::string& out, dist::Communicator& comm,
                   const PreflightOptions& options = {});

}  // namespace ditrain::train
