// Finds the placement with which a config trains fastest on a cluster, without access to any of its nodes. The planner
// plans every combination of settings as a run would (plan_briefly: memory without allocating it), drops those that do
// not fit, and predicts the step time of the others (step_timeline.hpp). It varies only settings that do not change the
// course of training: the global batch and the precision stay.
//
//   const PlannedMachine machine = machine_of(load_cluster("platforms/lineshine.yaml"), DType::kF32);
//   const ClusterPlan plan = plan_cluster(config, facts, machine);
//   fmt::print("{}", describe(plan, "--config dit_xl2.yaml"));
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ditrain/plan/cluster_description.hpp"
#include "ditrain/plan/run_plan.hpp"
#include "ditrain/plan/step_timeline.hpp"

namespace ditrain::plan {

/// The machine to plan for: a cluster and the rates of one of its cores.
struct PlannedMachine {
  ClusterDescription platform;
  MachineRates rates;
  size_t node_bytes = 0;                        ///< memory that the ranks of a node may use; 0: all memory of the dies
  int threads_per_core = 1;                     ///< hardware threads, which batch systems count
  std::optional<MachineRates> bf16_rates = {};  ///< of a machine for f32 that is faster in bf16
};
PlannedMachine machine_of(const ClusterDescription& platform, DType precision);
/// This machine as a cluster of one node, of whose cores as many count as one rank would use (affinity mask, CPU quota,
/// SLURM_CPUS_PER_TASK, OMP_NUM_THREADS), with rates measured in the precision of the config (see measure_rates).
/// Errors:   InputError if the topology is not that of this machine (HWLOC_SYNTHETIC)
PlannedMachine measure_this_machine(const config::Config& config);

/// One combination of settings. A rank has whole dies, each with a thread cluster, or a part of one die. With at least
/// one rank per die, several ranks of the node may share a replica (dp_tp); strategy dp is cftp with one rank per die.
struct Choice {
  int ranks_per_node = 1;
  int tensor_ranks = 1;  ///< ranks that share a replica
  int64_t micro_batch = 1;
  nn::Recompute recompute = nn::Recompute::kSelective;
  bool tiers = false;  ///< memory.automem
  bool shards = false;
  double bucket_mib = 25;
};

struct PlannedRun {
  Choice choice;
  config::Config config;              ///< the wanted config with the choice in it
  int clusters = 1, cores = 1;        ///< per rank
  size_t bytes = 0, limit_bytes = 0;  ///< memory of a rank, and its limit
  ClusterStep step = {};              ///< the predicted step; computed even if the run does not fit
  bool fits() const { return bytes <= limit_bytes; }
};

struct ClusterPlan {
  config::Config wanted;
  PlannedMachine machine;
  std::vector<PlannedRun> fitting = {};    ///< fastest first; of times within 0.5 %, the run with fewest changes first
  std::vector<PlannedRun> too_large = {};  ///< the run that lacks the fewest bytes first
  int not_allowed = 0;                     ///< combinations that the rules of configs exclude
  std::string refusal = {};                ///< message of one of these
  double bf16_s = 0;                       ///< seconds per step of the first run in bf16; 0: not planned
};

/// Plans all combinations. `wanted` is checked but not settled; `facts` are those of a run.
/// Errors:   InputError if no combination is allowed, with the first refusal; with dist.outer also for a single node,
///           and for a dist.simulate_link
ClusterPlan plan_cluster(const config::Config& wanted, const InputFacts& facts, const PlannedMachine& machine);

/// Describes the cluster, the best five runs with their --set options and start commands, and for each setting what
/// another value costs, and why. `arguments` are the program's arguments for the config.
/// Errors:   InputError if nothing fits, with the nearest combination
std::string describe(const ClusterPlan& plan, const std::string& arguments);

/// One line per planned placement, the fastest first.
std::string list_all(const ClusterPlan& plan);

}  // namespace ditrain::plan
