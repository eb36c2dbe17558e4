// Who carries out copies between tiers in memory where no core is there for that alone: threads beside the workers, on
// their cores, or the workers at the borders of nodes (memory::CopyBy). Which is faster depends on what the operating
// system makes of a core with two threads, on hardware threads that are idle, and on the bandwidth of one core beside
// that of all: it is measured, as are the disks.
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
  memory::TierRates by_threads = {}, by_workers = {};
};

struct TrialSetup {
  std::vector<int> pus = {};                          ///< where the threads may run; none: wherever the caller may
  std::vector<int> fast_nodes = {}, bulk_nodes = {};  ///< NUMA nodes of the two sides; none: any
  std::optional<memory::SimulatedBulk> simulate = {};
};
/// Takes some tens of milliseconds. Not inside a job of the team.
CopyTrial measure_copying(parallel::Team& team, const TrialSetup& setup);

/// What copies of `bytes` out and in again reach, one after the other. Errors: RunError as the backing
memory::TierRates measure_tier(memory::Backing& backing, size_t tier, size_t bytes, const std::vector<int>& pus);

/// What a run does, and why.
struct Copying {
  memory::CopyBy by = memory::CopyBy::kThreads;
  std::string why = {};                           ///< "" where nothing was to be chosen
  memory::PerTier<memory::TierRates> rates = {};  ///< 0: not measured
  double in_place_bytes_s = 0;  ///< of the extra time of bytes that are used in the bulk tier; 0: it is no slower
};

/// The faster way, with its rates.
Copying choose_copying(const CopyTrial& trial);
/// The same without a choice.
Copying copying_by(memory::CopyBy by, const std::string& why, const CopyTrial& trial);

/// What a run may choose from.
struct CopyingRequest {
  memory::PerTier<size_t> tier_bytes = {};  ///< 0: the tier is not used
  std::optional<memory::CopyBy> by = {};    ///< none: the faster way
  std::string why = {};                     ///< of `by`
  TrialSetup trial = {};
  std::string disk_folder = {};
};
/// Who copies, and what copies reach. With a team both ways and the disks are measured; without one (a dry run) nothing
/// is, threads copy unless `by` says otherwise, and the text says that a run measures. A disk that cannot be had has no
/// rates.
/// Errors:   RunError as memory::Backing
Copying plan_copying(const CopyingRequest& request, parallel::Team* team);

/// Bytes per second of the extra time that reading from a slow node takes; 0: none.
double extra_of_slow_node(double fast_bytes_s, double slow_bytes_s);

/// A folder, or the nearest one above it that exists: on its disk a folder will be that is yet to be made.
std::string existing_part(const std::string& folder);

}  // namespace ditrain::automem
