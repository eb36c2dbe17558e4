// The summary at the end of a run: how evenly its ranks worked, and which settings would make it faster.
#pragma once
#include <string>
#include <vector>

#include "ditrain/config/config.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/train/metrics.hpp"

namespace ditrain::train {

/// Times of a training loop; seconds.
struct RunSummary {
  int ranks = 1, nodes = 1;
  int64_t steps = 0;
  double wall_s = 0;
  PhaseTimes mean = {};       ///< per rank
  double least_waited_s = 0;  ///< least wait of any rank for the all-reduce: not due to slow ranks
  double compute_s = 0;       ///< prepare to backward, and optimizer; mean per rank
  double slowest_compute_s = 0;
  int slowest_rank = 0;
  std::string slowest_host = {};
  int slowest_threads = 1, most_threads = 1;
  bool comm_shares_cores = false;  ///< communication has no core of its own on some rank

  /// How much longer the slowest rank computes than the mean, as a fraction; 0: all ranks are equal.
  double imbalance() const { return compute_s > 0 ? slowest_compute_s / compute_s - 1 : 0; }
};

/// The times of one rank.
struct RankTimes {
  PhaseTimes total = {};
  double wall_s = 0;
  int64_t steps = 0;
  int threads = 1;
  bool comm_shares_cores = false;
};

/// Collective; complete on rank 0 only.
RunSummary summarise(const RankTimes& mine, dist::Communicator& comm);

/// "load: rank 3 (node7) computed longest, 12.30 s, 8.1 % above the mean of 11.38 s"; "" for one rank.
std::string load_line(const RunSummary& summary);

/// Advice, one line each, on everything that takes at least 5 % of the time. Runs of fewer than 10 steps get none,
/// because start-up dominates their times.
/// Rules:    data       more loader threads, or data that is cheaper to read
///           sums       if even the rank that waits least waits: settings that shorten the wait and are not set yet
///           imbalance  the slowest rank: fewer threads than others, or its place in topology.txt
///           checkpoint, verify  a larger interval
std::vector<std::string> advice(const RunSummary& summary, const config::Config& config);

}  // namespace ditrain::train
