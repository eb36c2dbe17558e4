// A step without a machine: how long it takes and what it copies with a given fast tier, found with the code that runs
// it and a queue of copies that counts time instead of moving bytes.
#pragma once
#include <vector>

#include "ditrain/automem/residency.hpp"

namespace ditrain::automem {

/// Rates of the slow tiers and times of the points.
struct Machine {
  memory::PerTier<memory::TierRates> tiers = {};
  memory::CopyBy copy_by = memory::CopyBy::kThreads;
  double in_place_bytes_s = 0;       ///< extra time of what is used in a slow tier in memory; 0: none
  std::vector<double> point_s = {};  ///< with all tensors in the fast tier
};

struct Forecast {
  double step_s = 0, stall_s = 0;
  double bytes_in = 0, bytes_out = 0;  ///< of one step
  size_t peak_bytes = 0;               ///< of the pool
  /// The pool when a point ends.
  struct Occupancy {
    double end_s = 0;  ///< since the step began
    size_t bytes = 0;  ///< in use
  };
  std::vector<Occupancy> occupancy = {};  ///< of each point, for pictures
};

/// Some steps from nothing; the forecast is of the last one, when the state at its start is that at its end.
/// Errors: as Residency
Forecast simulate(const Uses& uses, const Residency::Setup& setup, const Machine& machine, int steps = 4);

}  // namespace ditrain::automem
