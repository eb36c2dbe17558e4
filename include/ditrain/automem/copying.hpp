// Which threads copy between tiers in memory if no core is reserved for that: threads beside the workers, on their
// cores, or the workers at the borders of nodes (memory::CopyBy). It is measured which is faster, because that depends
// on how the operating system schedules two threads on a core, on idle hardware threads, and on the bandwidth of one
// core relative to all. Disks are measured too.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ditrain/memory/copy_engine.hpp"
#include "ditrain/parallel/team.hpp"

namespace ditrain::automem {

/// Times of the same computing and copying in both ways; medians of several rounds.
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

/// The way that a run copies, and why.
struct Copying {
  memory::CopyBy by = memory::CopyBy::kThreads;
  std::string why = {};                           ///< "" where nothing was to be chosen
  memory::PerTier<memory::TierRates> rates = {};  ///< 0: not measured
  double in_place_bytes_s = 0;                    ///< stands for extra time of use in the bulk tier; 0: as fast
};

/// The faster way, with its rates.
Copying choose_copying(const CopyTrial& trial);
/// The given way, with its rates.
Copying copying_by(memory::CopyBy by, const std::string& why, const CopyTrial& trial);

/// What a run may choose from.
struct CopyingRequest {
  memory::PerTier<size_t> tier_bytes = {};  ///< 0: the tier is not used
  std::optional<memory::CopyBy> by = {};    ///< none: the faster way
  std::string why = {};                     ///< of `by`
  TrialSetup trial = {};
  std::string disk_folder = {};
};
/// Which threads copy, and the rates of copies. With a team both ways and the disks are measured. Without one (a dry
/// run) nothing is measured, threads copy unless `by` says otherwise, and the text says that a run measures. An
/// unusable disk has no rates.
/// Errors:   RunError as memory::Backing
Copying plan_copying(const CopyingRequest& request, parallel::Team* team);

/// The rate that stands for the extra time of reading from a slow node [bytes per second]; 0: no extra time.
double extra_of_slow_node(double fast_bytes_s, double slow_bytes_s);

/// The folder, or its nearest ancestor that exists: the folder will be made on the same disk.
std::string existing_part(const std::string& folder);

}  // namespace ditrain::automem
