// The plan of memory.automem: records which tensors a step uses, without allocating them, computes the capacity of each
// tier, and lets automem::place_tensors place the tensors.
#pragma once
#include <optional>
#include <string>

#include "ditrain/automem/plan.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/plan/gradient_plan.hpp"
#include "ditrain/plan/placement.hpp"

namespace ditrain::plan {

/// Records what a step of this config uses on the rank of `gradients`, in order, without allocating or computing it.
automem::Uses record_step(const config::Config& config, const GradientPlan& gradients, int64_t samples,
                          int64_t micro_batch);

/// Bytes of the fast tier that never move: gradients, frozen parameters and temporaries.
size_t fixed_fast_bytes(const config::Config& config, const GradientPlan& gradients, int64_t micro_batch);

/// Capacity of each slow tier in bytes, from the keys memory.TIER_gib; SIZE_MAX: as much as is needed.
memory::PerTier<size_t> tier_capacities(const config::MemoryConfig& memory);

/// Which threads copy between tiers, as the config and the place of a rank have it; see automem::plan_copying.
automem::Copying plan_copying(const config::Config& config, const Placement& placement, const RankPlace& place,
                              const std::string& disk_folder, parallel::Team* team);

/// Decides which tier has which tensor; none if memory.automem is off. automem::choose_fastest then adds a forecast of
/// the time from simulated steps.
/// Errors: InputError if the fast tier has no size or cannot hold the tensors that never move, and as
///         automem::place_tensors
std::optional<automem::Plan> plan_automem(const config::Config& config, const GradientPlan& gradients, int64_t samples,
                                          int64_t micro_batch, const RankPlace& place);

}  // namespace ditrain::plan
