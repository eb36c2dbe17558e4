// Which core does what in a rank: its workers, split into thread clusters near their memory (one per NUMA domain), and
// the cores set aside for communication and for copies between memory tiers. A plan is a pure function of the machine
// and the request; nothing is bound here (see Team).
//
//   const CorePlan plan = plan_cores(platform::probe_topology(), {.budget = 152});
//   Team team(plan.team());
#pragma once
#include <string>
#include <vector>

#include "ditrain/parallel/team.hpp"
#include "ditrain/platform/topology.hpp"

namespace ditrain::parallel {

inline constexpr int kAutoCores = -1;
/// From this many cores per rank on, automatic counts set a core aside for communication and one for copies.
inline constexpr int kCoresToSetAside = 8;

struct CoreRequest {
  int threads = 0;              ///< workers; 0: what the budget leaves after the cores set aside
  int budget = 1;               ///< most threads of the rank, those set aside included; only where threads is 0
  int clusters = 0;             ///< 0: one per NUMA domain; inside a single domain one per L3 cache; else one
  int comm_cores = kAutoCores;  ///< cores reserved for communication; 0: it shares the workers' cores
  int copy_cores = kAutoCores;  ///< the same for copies between memory tiers
  bool smt = false;             ///< one worker per hardware thread instead of one per core
  int ranks_on_mask = 1;        ///< ranks that share this affinity mask; each gets an equal run of its cores, in order
  int rank_on_mask = 0;         ///< this rank's number among them; remaining cores count as unused by the last rank
  bool equal_masks = true;  ///< false: masks of other ranks overlap this one in part, and no core is this rank's own
};

struct CorePlan {
  std::vector<platform::Pu> workers;        ///< cluster 0, then cluster 1, ...; empty: not bound
  std::vector<int> cluster_sizes;           ///< workers of each cluster, all > 0
  std::vector<platform::Pu> comm, copy;     ///< the first hardware thread of each core set aside
  std::vector<platform::Pu> unused;         ///< cores of the rank that have no job, one hardware thread each
  std::string clusters_from;                ///< what a cluster is: "NUMA domains", "L3 caches", ...
  std::vector<platform::Domain> domain_of;  ///< of each cluster: where its memory belongs (its first worker's domain);
                                            ///< empty if workers are not bound
  std::vector<std::string> notes;           ///< notes for users on what to change, each one line

  int num_workers() const;
  Team::Config team() const;
};

/// Plans a rank on `topology.allowed`. With several NUMA domains the cores set aside come from the largest ones, so
/// that clusters differ by one worker at most on a regular mask. Workers of the plan are not bound if the rank has
/// fewer cores than workers, or if masks overlap in part, when no core is set aside either; a note says so.
/// clusters = N are the domains or the L3 caches if there are N of them, else runs of cores (without those set aside)
/// that differ by one worker at most; a note says if such a run needlessly crosses a border of domains.
/// Errors:   InputError "[placement] ..." for more clusters than workers, for clusters that divide neither the workers
///           nor, with automatic threads, the workers and the cores set aside, and for more cores set aside than
///           the workers leave or, with automatic threads, than the rank can spare
CorePlan plan_cores(const platform::Topology& topology, const CoreRequest& request);

/// Describes a group of PUs of a plan in one line, with numbers as ranges.
struct MapRow {
  std::string role, threads, pus, cores, l2, l3, numa, die, package;
};
/// Lists clusters, then cores set aside or unused; if workers are not bound, a row "cluster N" each without places.
std::vector<MapRow> map_of(const CorePlan& plan);

}  // namespace ditrain::parallel
