// What is decided before the first step: which slow tier has which tensor, and which tensors are used there in place.
// Candidates are simulated, the fastest one is taken. Between keeping a tensor and offloading it the step itself
// decides, by the same rule in the simulation and in the run (residency.hpp). What is computed again instead of kept is
// chosen block by block, by simulating such plans, where train.recompute is `auto` (plan/run_plan.cpp).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ditrain/automem/simulate.hpp"
#include "ditrain/memory/tiers.hpp"

namespace ditrain::automem {

/// What a rank may take of each tier for tensors that move.
struct Capacity {
  size_t fixed_bytes = 0;  ///< of the fast tier: what never moves (gradients, temporaries)
  size_t pool_bytes = 0;   ///< the rest of it
  memory::PerTier<size_t> tier_bytes = {};
};

struct PlannedHome {
  size_t tier = 0;  ///< row of memory::kTiers
  size_t offset = 0;
  bool in_place = false;
};

struct Plan {
  Uses uses;
  Strategy strategy = Strategy::kPlanned;
  Capacity capacity;
  std::vector<PlannedHome> homes;           ///< of every tensor of the uses
  memory::PerTier<size_t> tier_bytes = {};  ///< what homes take of each tier
  Machine machine;
  std::string copying = {};  ///< why machine.copy_by is as it is; "": there was nothing to choose
  std::string assumed = {};  ///< rates of tiers that were not measured, for people; "": all were
  double margin = 1.5;
  Forecast forecast = {};
  size_t in_place_bytes(std::optional<size_t> tier = {}) const;  ///< of one tier, else of all
  std::vector<bool> in_place() const;                            ///< of every tensor
  /// Setup of a Residency without addresses.
  Residency::Setup setup(const memory::PerTier<memory::Backing*>& tiers) const;
};

/// Tensors go to the fastest of the slow tiers that has room; those that are used most choose first. All bytes of the
/// plan are known then; it has no forecast. Errors: InputError if the tiers together are too small, with what is
/// missing
Plan place_tensors(Uses uses, Strategy strategy, const Capacity& capacity, const Machine& machine);

/// Simulates steps to choose what is used in place and how early copies begin, and to forecast the time: seconds of a
/// core for a large model. The bytes stay. Errors: InputError as Residency
void choose_fastest(Plan& plan);

/// With other times and rates, as measured: margin and forecast anew, and what is used in place if another choice would
/// be clearly faster. Homes stay where they are. Returns whether that choice has changed.
bool plan_again(Plan& plan, const Machine& machine);

/// Rates of a tier by what its streams did between two moments; where nothing was copied, those expected.
memory::TierRates measured_rates(const memory::TierRates& expected, const memory::TierTotals& since,
                                 const memory::TierTotals& until);

/// A line on who copies and why; "" where there was nothing to choose.
std::string describe_copying(const Plan& plan);

/// Lines for the start report and --explain-memory.
std::string describe(const Plan& plan);

}  // namespace ditrain::automem
