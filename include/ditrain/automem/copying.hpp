// Who carries out copies between tiers in memory where no core is there for that alone: threads beside the workers, on
// their cores, or the workers at the borders of nodes (memory::CopyBy). Which is faster depends on what the operating
// system makes of a core with two threads, on hardware threads that are idle, and on the bandwidth of one core beside
// that of all: it is measured.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ditrain/memory/copy_engine.hpp"
#include "ditrain/parallel/team.hpp"

namespace ditrain::automem {

/// The same computing and copying in both ways; medians of several rounds.
struct CopyTrial {
  size_t bytes = 0;      ///< copied
  double compute_s = 0;  ///< of the computing alone
  double threads_s = 0;  ///< computing while threads copy
  double workers_s = 0;  ///< computing, then copying by all workers
  double bytes_s = 0;    ///< of the workers' copies
};

/// Takes some tens of milliseconds. Not inside a job of the team.
/// `pus`: where the threads may run; none: wherever the caller may.
CopyTrial measure_copying(parallel::Team& team, const std::vector<int>& pus,
                          const std::optional<memory::SimulatedBulk>& simulate);

/// What a run does, and why.
struct Copying {
  memory::CopyBy by = memory::CopyBy::kThreads;
  std::string why = {};  ///< "" where nothing was to be chosen
  double bytes_s = 0;    ///< of the workers' copies; 0: not measured
};

/// The faster way.
Copying choose_copying(const CopyTrial& trial);

}  // namespace ditrain::automem
