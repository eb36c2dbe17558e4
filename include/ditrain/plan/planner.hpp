// Which placement of a config trains fastest on a cluster, before any of its nodes is asked for. The planner plans
// every combination as a run would (plan_briefly: memory without allocating it), leaves out what does not fit, and
// predicts the time of a step of the others (step_timeline.hpp). Only what does not change the course of training is
// varied: the global batch and the precision stay.
//
//   const PlannedMachine machine = machine_of(load_platform("platforms/lineshine.yaml"), DType::kF32);
//   const ClusterPlan plan = plan_cluster(config, facts, machine);
//   fmt::print("{}", describe(plan, "--config dit_xl2.yaml"));
#pragma once
#include <string>
#include <vector>

#include "ditrain/plan/platform.hpp"
#include "ditrain/plan/run_plan.hpp"
#include "ditrain/plan/step_timeline.hpp"

namespace ditrain::plan {

/// What is planned on: a cluster and the rates of one of its cores.
struct PlannedMachine {
  Platform platform;
  MachineRates rates;
  size_t node_bytes = 0;     ///< memory that the ranks of a node may use; 0: that of the dies
  int threads_per_core = 1;  ///< which batch systems count
};
PlannedMachine machine_of(const Platform& platform, DType precision);
/// This machine as one node, its rates measured in the precision of the config (see measure_rates).
/// Errors:   InputError if the topology is not that of this machine (HWLOC_SYNTHETIC)
PlannedMachine measure_this_machine(const config::Config& config);

/// A rank has whole dies, each with a thread cluster, or a part of one. With one rank per die (or more), replicas may
/// be shared by several ranks of the node (dp_tp); strategy dp is cftp with one rank per die.
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
  config::Config config;              ///< the wanted one with the choice in it
  int clusters = 1, cores = 1;        ///< of a rank
  size_t bytes = 0, limit_bytes = 0;  ///< memory of a rank, and what it may have
  ClusterStep step = {};              ///< as if it fitted
  bool fits() const { return bytes <= limit_bytes; }
};

struct ClusterPlan {
  config::Config wanted;
  PlannedMachine machine;
  std::vector<PlannedRun> fitting = {};  ///< the fastest first; where times are within 0.5 %, that which changes least
  std::vector<PlannedRun> too_large = {};  ///< what is missing least first
  int not_allowed = 0;                     ///< combinations that the rules of configs exclude
  std::string refusal = {};                ///< one of their messages
};

/// `wanted` is checked but not settled; `facts` as of a run.
/// Errors:   InputError if no combination is allowed, with the first refusal
ClusterPlan plan_cluster(const config::Config& wanted, const InputFacts& facts, const PlannedMachine& machine);

/// The cluster, the best five with their --set lines and the lines that start them, and for each setting what another
/// value of it costs, and why. `arguments` are those of the program for the config.
/// Errors:   InputError if nothing fits, with what comes nearest
std::string describe(const ClusterPlan& plan, const std::string& arguments);

/// A line for every placement that was planned, the fastest first.
std::string list_all(const ClusterPlan& plan);

}  // namespace ditrain::plan
