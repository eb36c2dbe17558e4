// The decisions before the first step: which slow tier has which tensor, and which tensors are used there in place.
// Candidates are simulated, and the fastest is taken. Whether a tensor stays or is evicted is decided during the step,
// by the same rule in the simulation and in the run (residency.hpp). If train.recompute is `auto`, plan/run_plan.cpp
// simulates such plans to choose which blocks are recomputed.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ditrain/automem/simulate.hpp"
#include "ditrain/memory/tiers.hpp"

namespace ditrain::automem {

/// How much of each tier a rank may take.
struct Capacity {
  size_t fixed_bytes = 0;  ///< fast tier: data that never moves (gradients, temporaries)
  size_t pool_bytes = 0;   ///< fast tier: the rest, for tensors that move
  memory::PerTier<size_t> tier_bytes = {};
};

struct PlannedSlot {
  size_t tier = 0;  ///< row of memory::kTiers
  size_t offset = 0;
  bool in_place = false;
};

struct Plan {
  Uses uses;
  Strategy strategy = Strategy::kPlanned;
  Capacity capacity;
  std::vector<PlannedSlot> backing_slots;   ///< one per tensor of the uses
  memory::PerTier<size_t> tier_bytes = {};  ///< bytes that backing_slots take of each tier
  Machine machine;
  std::string copying = {};  ///< reason for machine.copy_by; "": there was no choice
  std::string assumed = {};  ///< text on rates that were not measured; "": all were
  double margin = 1.5;
  Forecast forecast = {};
  size_t in_place_bytes(std::optional<size_t> tier = {}) const;  ///< in one tier, else in all
  std::vector<bool> in_place() const;                            ///< for every tensor
  /// Setup of a Residency without addresses.
  Residency::Setup setup(const memory::PerTier<memory::Backing*>& tiers) const;
};

/// Places each tensor in the fastest slow tier that has space; tensors that are used most choose first. The plan then
/// has all of its bytes but no forecast.
/// Errors: InputError with the missing bytes if the tiers together are too small
Plan place_tensors(Uses uses, Strategy strategy, const Capacity& capacity, const Machine& machine);

/// Simulates steps of the plan as it is. Errors: InputError as Residency
Forecast forecast_of(const Plan& plan);

/// Simulates steps to choose which tensors are used in place and how early copies begin, and to forecast the time. It
/// takes seconds of CPU time for a large model. The bytes stay.
/// Errors: InputError as Residency
void choose_fastest(Plan& plan);

/// Recomputes margin and forecast with measured times and rates, and changes which tensors are used in place if another
/// choice is clearly faster. Slots stay. Returns whether that choice has changed.
bool plan_again(Plan& plan, const Machine& machine);

/// Rates of a tier between two readings of its totals; the expected rates if nothing was copied.
memory::TierRates measured_rates(const memory::TierRates& expected, const memory::TierTotals& since,
                                 const memory::TierTotals& until);

/// A line that says which threads copy and why; "" if there was no choice.
std::string describe_copying(const Plan& plan);

/// Lines for the start report and --explain-memory.
std::string describe(const Plan& plan);

}  // namespace ditrain::automem
