// Where a rank computes: its threads, their cores, and what a person should know or change about it.
#pragma once
#include <string>
#include <vector>

#include "ditrain/dist/communicator.hpp"
#include "ditrain/parallel/team.hpp"
#include "ditrain/platform/topology.hpp"
#include "ditrain/train/config.hpp"

namespace ditrain::train {

struct Placement {
  platform::Topology topology;
  int threads = 1, clusters = 1;
  std::string ruled_by;            ///< what set the number of threads
  std::vector<int> pus;            ///< one a worker; empty: not bound
  std::vector<std::string> notes;  ///< fallbacks and advice, each one line
  parallel::Team::Config team() const { return {.num_workers = threads, .num_clusters = clusters, .pus = pus}; }
};

/// Collective: ranks of a node whose affinity masks overlap share its cores between them.
/// If the mask gives a rank fewer cores than wanted (config.threads, else the node's cores / its ranks), a note says so
/// and gives the mpirun line that fixes it.
Placement plan_placement(const ParallelConfig& config, dist::Communicator& comm);

/// Lines for the start report and topology.txt: machine, ranks, threads, pinning.
std::string describe(const Placement& placement, const dist::Communicator& comm);

}  // namespace ditrain::train
