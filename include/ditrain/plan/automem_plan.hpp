// The plan of memory.automem: the uses of a step recorded without its memory, the capacity of each tier, and what
// automem::place_tensors makes of them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ditrain/automem/plan.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/plan/gradient_plan.hpp"
#include "ditrain/plan/placement.hpp"

namespace ditrain::plan {

/// What a step of this config uses on the rank of `gradients`, in order. Allocates nothing of it, computes nothing.
automem::Uses record_step(const config::Config& config, const GradientPlan& gradients, int64_t samples,
                          int64_t micro_batch);

/// Bytes of the fast tier that never move: gradients, frozen parameters and temporaries.
size_t fixed_fast_bytes(const config::Config& config, const GradientPlan& gradients, int64_t micro_batch);

/// What the slow tiers may take, by the keys memory.TIER_gib; SIZE_MAX: what is needed.
memory::PerTier<size_t> tier_capacities(const config::MemoryConfig& memory);

/// A folder, or the nearest one above it that exists: on its disk a folder will be that is yet to be made.
std::string existing_part(const std::string& folder);

/// Who copies between tiers in memory, and what copies reach: of tiers in memory and of the disk that `disk_folder`, or
/// what exists of it, is on. Where memory.copy is auto and no core is set aside, both ways are measured with the team;
/// without one (a dry run) it is the threads, nothing is measured, and the text says that a run measures.
/// A disk that cannot be had has no rates. Errors: RunError as memory::Backing
automem::Copying plan_copying(const config::Config& config, const Placement& placement, const RankPlace& place,
                              const std::string& disk_folder, parallel::Team* team);

/// Bytes per second of the extra time that reading from a slow node takes; 0: none.
double extra_of_slow_node(double fast_bytes_s, double slow_bytes_s);

/// None where memory.automem is off. It has its bytes and no forecast yet: automem::choose_fastest makes that, from
/// many simulated steps. Errors: InputError where the fast tier has no size, or does not hold what never moves; as
/// automem::place_tensors
std::optional<automem::Plan> plan_automem(const config::Config& config, const GradientPlan& gradients, int64_t samples,
                                          int64_t micro_batch, const RankPlace& place);

}  // namespace ditrain::plan
