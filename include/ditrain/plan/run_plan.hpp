// What is decided before a run begins: where a rank lies, shares of samples, micro-batch, precision, the split over
// clusters, gradients with buckets and shards of the optimiser state, memory. plan_run makes each part once, from the
// config, the place of a rank on the machine and the number of ranks. The run itself, its start report, the refusal of
// a run that does not fit, the dry run, --explain-memory and the benches all read this plan; nothing changes it.
//
//   const Placement placement = plan_placement(config, comm);
//   const RunPlan plan = plan_run(config, comm.world_size(), place_of(placement, comm.local_size()));
//   check_memory(plan);
#pragma once
#include <optional>

#include "ditrain/automem/plan.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/plan/automem_plan.hpp"
#include "ditrain/plan/cut.hpp"
#include "ditrain/plan/gradient_plan.hpp"
#include "ditrain/plan/memory_plan.hpp"
#include "ditrain/plan/placement.hpp"

namespace ditrain::plan {

struct RunPlan {
  config::Config config;  ///< a copy, with parallel.tensor_ranks and train.recompute_of_blocks settled
  int world_size = 1;
  RankPlace place = {};
  int replicas = 1;         ///< ranks with samples of their own
  int64_t samples = 1;      ///< samples of the global batch on one of them
  int64_t micro_batch = 1;  ///< samples that a rank processes at once
  CutPlan cut = {};
  InputFacts facts = {};
  GradientPlan gradients = {};
  std::optional<automem::Plan> automem = {};  ///< none: memory.automem is off
  MemoryPlan memory = {};                     ///< per rank
};

/// `config` is settled (plan/inputs.hpp) and checked for the ranks (config::validate_for_ranks). `place` is where a
/// rank lies or would lie; memory depends on it, gradients do not. `bandwidth` is that between the domains of its
/// clusters, see plan_cut. `facts` has the sizes in files on which memory depends.
/// Memory:   does not allocate what it plans
/// Errors:   InputError as plan_cut
RunPlan plan_run(const config::Config& config, int world_size, const RankPlace& place = {},
                 const DomainBandwidth& bandwidth = {}, const InputFacts& facts = {});

/// The same without what costs time: train.recompute is not auto, the plan of memory.automem has no forecast, and the
/// updates have no schedule. Planners compare many of them.
RunPlan plan_briefly(const config::Config& config, int world_size, const RankPlace& place,
                     const InputFacts& facts = {});

/// Bytes of a rank of that run, computed without the time-consuming plan of memory.automem. If train.recompute is auto,
/// they are those of the lowest degree that fits the memory of the node, or the fewest if none fits.
/// Errors:   as plan_run
size_t planned_bytes(const config::Config& config, int world_size, const RankPlace& place,
                     const InputFacts& facts = {});

}  // namespace ditrain::plan
