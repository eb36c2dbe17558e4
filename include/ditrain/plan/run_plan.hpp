// Everything that is decided before a run begins: the place of a rank, its share of the samples, micro-batch,
// precision, the split over clusters, gradients with buckets and shards of the optimiser state, memory. plan_run makes
// each part once, from the config, the place of a rank on the machine and the number of ranks. The run itself, its
// start report, the refusal of a run that does not fit, the dry run, --explain-memory and the benches all read this
// plan; nothing changes it.
//
//   const Placement placement = plan_placement(config, comm);
//   const RunPlan plan = plan_run(config, comm.world_size(), place_of(placement, comm.local_size()));
//   check_memory(plan);
#pragma once
#include <optional>

#include "ditrain/automem/plan.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/dist/communicator.hpp"
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
  int replicas = 1;         ///< copies of the model, each with samples of its own
  int64_t samples = 1;      ///< samples per replica and step
  int64_t micro_batch = 1;  ///< samples that a rank processes at once
  CutPlan cut = {};
  InputFacts facts = {};
  GradientPlan gradients = {};
  std::optional<automem::Plan> automem = {};  ///< none: memory.automem is off
  MemoryPlan memory = {};                     ///< per rank
};

/// Plans a run. `config` is settled (plan/inputs.hpp) and checked for the ranks (config::validate_for_ranks). `place`
/// is the place of a rank, real or assumed; memory depends on it, gradients do not. `bandwidth` is measured between the
/// domains of its clusters, see plan_cut. `facts` has the sizes in files on which memory depends.
/// Memory:   does not allocate what it plans
/// Errors:   InputError as plan_cut, plan_gradients, plan_automem and automem::choose_fastest
RunPlan plan_run(const config::Config& config, int world_size, const RankPlace& place = {},
                 const DomainBandwidth& bandwidth = {}, const InputFacts& facts = {});

/// The same without the slow parts, for planners that compare many plans: the plan of memory.automem has no forecast
/// and the updates have no schedule. train.recompute must not be auto.
RunPlan plan_briefly(const config::Config& config, int world_size, const RankPlace& place,
                     const InputFacts& facts = {});

/// The memory of a rank of that run, computed without the time-consuming plan of memory.automem. If train.recompute is
/// auto, it is that of the lowest degree that fits the memory of the node, or the least if none fits.
/// Errors:   as plan_run
MemoryPlan planned_memory(const config::Config& config, int world_size, const RankPlace& place,
                          const InputFacts& facts = {});

/// For ranks that share products, which have to recompute the same blocks: how many steps of recomputation
/// (train.recompute: auto, one block more from none to selective, then to block) the rank takes that needs most.
/// plan_run keeps to it as RankPlace::recompute_degree. Collective.
/// Errors:   as plan_run
int64_t agreed_recompute_degree(const config::Config& config, const RankPlace& place, const InputFacts& facts,
                                dist::Communicator& comm);

}  // namespace ditrain::plan
