// Where a rank computes: its threads, their cores, and notes for users on what to change.
#pragma once
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/automem/copying.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/memory/fast_pool.hpp"
#include "ditrain/parallel/core_plan.hpp"
#include "ditrain/parallel/team.hpp"
#include "ditrain/platform/numa.hpp"
#include "ditrain/platform/topology.hpp"
#include "ditrain/tensor/tensor.hpp"

namespace ditrain::plan {

struct Placement {
  platform::Topology topology;
  parallel::CorePlan plan;
  int threads = 1, clusters = 1;
  std::string ruled_by;         ///< which limit or key set the number of threads
  std::vector<int> pus;         ///< one per worker; empty: not bound
  std::vector<int> comm_pus;    ///< one per core reserved for communication; empty: it shares the workers' cores
  std::vector<int> copy_pus;    ///< one per core reserved for copies between memory tiers; empty likewise
  std::vector<int> helper_pus;  ///< for other threads (loader): the rank's cores not set aside
  /// This rank's share of the free memory of each NUMA node that it uses: the node's free memory before any rank
  /// allocated, divided by the ranks that use the node. Empty if the system does not report it, and in a dry run.
  std::map<int, platform::NodeFreeMemory> free_memory;
  std::map<int, int> sharers;      ///< ranks of this node that use a NUMA node, itself included; a missing one: 1
  std::string set_aside;           ///< two lines: how many cores are set aside, or why none
  std::string map;                 ///< table of the cores of each rank; complete on rank 0 only
  std::vector<std::string> notes;  ///< fallbacks and advice, each one line
  std::string second_run;          ///< how a second run on this machine gets cores of its own; "" where a launcher, the
                                   ///< affinity mask or a run on all cores leaves no choice; empty in a dry run too
  parallel::Team::Config team() const { return plan.team(); }
  const std::vector<int>& pus_of_copies() const { return copy_pus.empty() ? helper_pus : copy_pus; }
};

/// Plans threads and cores of this rank. Collective. Ranks of a node whose affinity masks overlap divide its cores.
/// parallel.comm_cores: auto is 0 for a single rank; memory.copy_cores is 0 while memory.automem is off or memory.copy
/// is workers (a note says so if the config asks for more); parallel::plan_cores decides the rest. With
/// parallel.strategy dp and dp_tp a rank has one cluster.
/// Notes tell the user: how to start one rank per cluster, if a rank of dp or dp_tp has cores of several; the mpirun
/// line that fixes a mask with fewer cores than wanted (parallel.threads, else the node's cores / its ranks); and an
/// OMP_NUM_THREADS that leaves most of a rank's cores idle.
/// Errors:   InputError "[placement] ..." as parallel::plan_cores
Placement plan_placement(const config::Config& config, dist::Communicator& comm);

/// Collective: computes Placement::free_memory. Files are read below `root`, see platform::free_memory_on_node.
std::map<int, platform::NodeFreeMemory> free_memory_of_rank(const parallel::CorePlan& plan, dist::Communicator& comm,
                                                            const std::string& root = "");

/// "mpirun"; for root, with the environment variables that let Open MPI run as root.
std::string mpirun();

/// Lines with machine, ranks, threads and map, for the start report and topology.txt.
std::string describe(const Placement& placement, const dist::Communicator& comm);

/// The places that a dry run assumes for ranks, on nodes like the allowed part of `machine`.
///   with Slurm's variables (SLURM_NTASKS_PER_NODE, or SLURM_NNODES above 1)   as many ranks per node as they say: one
///             per die if there are as many dies, else equal shares of the cores
///   without   one rank per die if that fills whole nodes; else equal shares of one node's cores; else (more ranks than
///             cores) one per die on as many nodes as needed
struct DryRunRanks {
  int nodes = 1, per_node = 1;
  std::string per_node_from;  ///< the Slurm variable that set per_node; "": none
  bool one_per_die = true;
  std::vector<Placement> on_node;  ///< placements of the ranks of the first node
};
/// Errors:   as plan_placement
DryRunRanks dry_run_ranks(const config::Config& config, const platform::Topology& machine, int ranks);

/// The same lines as for running ranks, with the assumption and the mpirun and srun lines that start ranks that way.
std::string describe(const DryRunRanks& assumed, const platform::Topology& machine, int ranks);

/// What other parts of a plan need to know about the place of a rank, be it a running rank or one that a dry run or a
/// bench assumes. The default is a rank alone on its node, with one cluster.
struct RankPlace {
  std::vector<int> cluster_sizes = {1};  ///< workers of each cluster
  std::vector<int> nodes = {};           ///< NUMA nodes of the clusters, each once; empty if workers are not bound or
                                         ///< nodes are unknown
  int ranks_on_node = 1;                 ///< ranks that share the memory of the machine
  std::vector<int> fast_nodes = {};      ///< per cluster: the nearby NUMA node of highest bandwidth; empty as `nodes`
  size_t fast_bytes = 0;                 ///< this rank's bytes on fast_nodes with memory on the package (HBM)
  std::vector<int> bulk_nodes = {};      ///< nodes of ordinary memory near the clusters, each once, if the machine has
                                         ///< another kind too; empty: any
  std::map<int, platform::NodeFreeMemory> free_memory = {};  ///< see Placement
  int rank = 0;                                              ///< among the ranks that share the optimiser state
  automem::Copying copying = {};                             ///< between tiers in memory
  std::optional<int64_t> recompute_degree = {};              ///< see agreed_recompute_degree(); unset: what fits

  /// Workers of all clusters.
  int workers() const { return std::accumulate(cluster_sizes.begin(), cluster_sizes.end(), 0); }
};
RankPlace place_of(const Placement& placement, int ranks_on_node);

/// The fast_nodes of a place, each once.
std::vector<int> distinct_fast_nodes(const RankPlace& place);

/// The memory node of each cluster's share of the fast tier; empty if there is no choice.
std::vector<memory::ClusterShare> fast_shares(const RankPlace& place);

/// NUMA nodes for tensors that every cluster reads and for those that never move: the nodes of the fast tier if the
/// machine has other memory and tensors `move` between the two, else the nodes of the clusters; empty if there is no
/// choice.
std::vector<int> nodes_of_fixed(const RankPlace& place, bool move);

/// Spreads the pages of tensors that every cluster reads over NUMA nodes; does nothing without nodes. (Data that only
/// one worker touches, such as optimiser state and EMA, stays where that worker wrote it first.) Undefined tensors are
/// skipped. Call it before the tensors are written; otherwise pages have to move. Returns why the system refused; "" if
/// it did not.
std::string spread_over_nodes(const std::vector<int>& nodes, const std::vector<Tensor>& tensors);

}  // namespace ditrain::plan
