// Simulates a step with a given fast tier: how long it takes and how many bytes it copies. The simulation runs the same
// code as the step, with a queue of copies that counts time instead of moving bytes.
#pragma once
#include <vector>

#include "ditrain/automem/residency.hpp"

namespace ditrain::automem {

/// Rates of the slow tiers and times of the points.
struct Machine {
  memory::PerTier<memory::TierRates> tiers = {};
  memory::CopyBy copy_by = memory::CopyBy::kThreads;
  double in_place_bytes_s = 0;       ///< see Copying::in_place_bytes_s; 0: no extra time
  std::vector<double> point_s = {};  ///< times with all tensors in the fast tier
};

struct Forecast {
  double step_s = 0, stall_s = 0;
  double bytes_in = 0, bytes_out = 0;  ///< bytes copied in one step
  size_t peak_bytes = 0;               ///< peak use of the pool
  /// Use of the pool when a point ends.
  struct Occupancy {
    double end_s = 0;  ///< since the step began
    size_t bytes = 0;  ///< bytes in use
  };
  std::vector<Occupancy> occupancy = {};  ///< after each point, for pictures
};

/// Simulates some steps from an empty pool. The forecast is that of the last step, which starts and ends in the same
/// state.
/// Errors: as Residency
Forecast simulate(const Uses& uses, const Residency::Setup& setup, const Machine& machine, int steps = 4);

}  // namespace ditrain::automem
