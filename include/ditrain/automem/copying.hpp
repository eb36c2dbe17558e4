// Decides which threads copy between tiers in memory if no core is reserved for that: extra threads on the workers'
// cores, or the workers themselves at the borders of nodes of the tape (memory::CopyBy). A trial measures which is
// faster, because that depends on how the operating system schedules two threads on a core, on idle hardware threads,
// and on the bandwidth of one core relative to all. Disks are measured too.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ditrain/memory/copy_engine.hpp"
#include "ditrain/parallel/team.hpp"

namespace ditrain::automem {

/// Times of the same computation and copies done both ways; medians of several rounds.
struct CopyTrial {
  size_t bytes = 0;      ///< copied
  double compute_s = 0;  ///< computing alone
  double threads_s = 0;  ///< computing while threads copy
  double workers_s = 0;  ///< computing, then copying by all workers
  memory::TierRates by_threads = {}, by_workers = {};
};

struct TrialSetup {
  std::vector<int> pus = {};                          ///< cores for the threads; empty: those of the caller
  std::vector<int> fast_nodes = {}, bulk_nodes = {};  ///< NUMA nodes of the two sides; empty: any
  std::optional<memory::SimulatedBulk> simulate = {};
};
/// Measures for some tens of milliseconds. Do not call it inside a job of the team.
CopyTrial measure_copying(parallel::Team& team, const TrialSetup& setup);

/// Measures the rates of copying `bytes` out and then in again. Errors: RunError as the backing
memory::TierRates measure_tier(memory::Backing& backing, size_t tier, size_t bytes, const std::vector<int>& pus);

/// How a run copies, and why.
struct Copying {
  memory::CopyBy by = memory::CopyBy::kThreads;
  std::string why = {};                           ///< reason of the choice; "": there was no choice
  memory::PerTier<memory::TierRates> rates = {};  ///< 0: not measured
  double in_place_bytes_s = 0;                    ///< rate for the extra time of use in the bulk tier; 0: none
};

/// The faster way, with its rates.
Copying choose_copying(const CopyTrial& trial);
/// The given way, with its rates.
Copying copying_by(memory::CopyBy by, const std::string& why, const CopyTrial& trial);

/// The choices of a run.
struct CopyingRequest {
  memory::PerTier<size_t> tier_bytes = {};  ///< 0: the tier is not used
  std::optional<memory::CopyBy> by = {};    ///< none: the faster way
  std::string why = {};                     ///< the reason, if `by` is given
  TrialSetup trial = {};
  std::string disk_folder = {};
};
/// Decides which threads copy, and finds the rates of copies. With a team it measures both ways and the disks. Without
/// one (a dry run) it measures nothing, threads copy unless `by` says otherwise, and the text says that a run measures.
/// An unusable disk has no rates.
/// Errors:   RunError as memory::Backing
Copying plan_copying(const CopyingRequest& request, parallel::Team* team);

/// The rate [bytes per second] at which the extra time of reading from a slow node accrues; 0: no extra time.
/// Math:     1 / (1 / slow - 1 / fast)
double extra_of_slow_node(double fast_bytes_s, double slow_bytes_s);

/// The folder, or its nearest existing ancestor, which is on the disk where the folder will be made.
std::string existing_part(const std::string& folder);

}  // namespace ditrain::automem
