// Training steps of a cluster, message by message, on SimGrid's network model: flows share links max-min fairly. The
// step is that of the trainer: each rank computes, its buckets leave in the order in which backward fills them, the
// engine has at most two of them under way (sums in the memory of the node, exchange between the first ranks of the
// nodes, copies to the ranks of the node, one bucket per stage at a time), and weights change as buckets arrive.
//
// A thread that exchanges spends some time on each message (SimulationOptions::message_us), beside the wire.
//
// What is not simulated: message headers, protocol switches of the MPI library and collisions of static routes (the
// links of a switch to the level above count as one with their common rate).
//
//   if (!has_simgrid()) ...
//   const SimulatedStep step = simulate(cluster, schedule, {.jitter = 0.01});
#pragma once
#include <cstdint>
#include <vector>

#include "ditrain/bench/scale.hpp"
#include "ditrain/plan/cluster_description.hpp"

namespace ditrain::bench {

/// A bucket on its way: a sum, or slices that ranks gather (adaLN's factors, new weights).
struct Exchange {
  bool gathers = false;
  double wire_bytes = 0;  ///< between nodes, of the whole bucket
  double node_bytes = 0;  ///< in the memory of each rank
  double ready_s = 0;     ///< sums: compute after the beginning of the step when a rank has it
  double update_s = 0;    ///< sums: of the weights that change when it has arrived
};

/// A step as each rank makes it; times are those of a rank that nothing delays.
struct StepSchedule {
  double compute_s = 0;      ///< forward and backward
  double tensor_s = 0;       ///< the part of it that sums of dp_tp take
  double rest_s = 0;         ///< what follows the updates
  double lone_update_s = 0;  ///< of weights that no sum waits for: those of a single replica
  bool overlap = true;       ///< buckets leave when they are ready; false: when backward has ended
  bool early = true;         ///< weights change bucket by bucket; false: after the last one
  std::vector<Exchange> sums = {};
  std::vector<Exchange> new_weights = {};  ///< with shards: each follows the update of its bucket
  std::vector<Exchange> outer = {};        ///< of an outer step, behind a pass over the weights and before another one
  double take_s = 0, apply_s = 0;          ///< these two passes
  int ranks_per_node = 1;                  ///< that sum with each other
  int leaders_per_node = 1;                ///< that exchange at once: with dp_tp one for each part of a replica
  double node_bytes_per_s = 0, node_latency_s = 0;  ///< between two ranks of a node

  double update_s() const;
};

struct SimulatedStep {
  double step_s = 0;     ///< mean of the simulated steps
  double compute_s = 0;  ///< mean over ranks: forward and backward, with jitter
  /// Mean over nodes of what a rank waits for others beyond what the rank that waits least does: they are slower.
  double slower_s = 0;
  double exposed_s = 0;  ///< what the rank that waits least waits: for sums, gatherings and facts
  double wall_s = 0;     ///< the simulation took
  int64_t peak_bytes = 0, messages = 0;
};

bool has_simgrid();

/// Simulates in a process of its own, since SimGrid is made for one simulation per process.
/// Errors:   InputError for a ring over more than kMostRingNodes nodes, for more slow nodes than nodes, and in a build
///           without SimGrid; RunError if the simulation ends without a result
SimulatedStep simulate(const plan::ClusterDescription& cluster, const StepSchedule& schedule,
                       const SimulationOptions& options);

/// Who sends to whom in an exchange of all with all.
struct Flow {
  int from = 0, to = 0;
  double share = 0;  ///< of what one node sends to all others together
};
/// All pairs, or about `rounds` of the n - 1 equal rounds, in which each node sends to one other: of each level of the
/// tree as many as pairs meet there, at least one, with the bytes of all. If some switches have fewer nodes below them
/// than others, twice as many rotations of all nodes by evenly spread numbers of places. rounds 0: all pairs.
std::vector<Flow> flows_of(const plan::ClusterDescription& cluster, int rounds);

}  // namespace ditrain::bench
