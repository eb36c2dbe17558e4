// Steps of clusters that are not here: the trainer's schedule on SimGrid, on a platform of configs/platforms. The
// paper's Figures 10 and 11 and its strategies (Table 2) beyond one node.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/base/words.hpp"
#include "ditrain/bench/harness.hpp"
#include "ditrain/config/config.hpp"

namespace ditrain::bench {

/// How gradients come together.
enum class Way {
  kTwoLevel,        ///< as the engine: node memory, then first ranks exchange slices, 2 (n-1)/n of the bytes
  kRing,            ///< one ring over all ranks; equal bytes, 2 (ranks - 1) latencies
  kShards,          ///< dist.shard_optimizer as the engine does it: two-level sums, then all-gather of new weights
  kReduceScatter,   ///< shards whose sums end in the node that owns them: 2 (n-1)/n with the all-gather
  kOuter,           ///< dist.outer: no messages for every - 1 steps, then one all-reduce of the parameters
  kOuterOverlapped  ///< the same, which travels while the next steps compute
};
inline constexpr Word<Way> kWays[] = {{"two_level", Way::kTwoLevel}, {"ring", Way::kRing},
                                      {"shards", Way::kShards},      {"reduce_scatter", Way::kReduceScatter},
                                      {"outer", Way::kOuter},        {"outer_overlapped", Way::kOuterOverlapped}};
constexpr std::span<const Word<Way>> words_of(Way) { return kWays; }

inline constexpr int kMostRingNodes = 64;  ///< 2 (ranks - 1) dependent messages per bucket and rank: too many beyond

struct SimulationOptions {
  Way way = Way::kTwoLevel;
  int64_t outer_every = 50;  ///< H of the outer ways
  int64_t steps = 0;         ///< simulated after a first one (outer ways: times outer_every); 0: 1, with jitter 2
  int rounds = 4;            ///< of n - 1 equal ones that are simulated; 0: every message
  bool every_die = false;    ///< ranks of a node as actors with messages between them; else their time is a formula
  double jitter = 0;         ///< sigma of the logarithm of each die's compute time, anew in each step
  int64_t slow_nodes = 0;    ///< nodes, drawn by the seed, whose compute takes slow_factor times as long
  double slow_factor = 1.5;
  double busy_links = 0;    ///< share of the links (nodes' and switches'), drawn by the seed, that others use
  double busy_share = 0.5;  ///< the part of those links that is not ours
  double message_us = 0.5;  ///< that a first rank's thread spends on each message that it sends or receives
  int64_t seed = 0;
};

struct ScaleBench {
  std::string platform;                  ///< file
  std::vector<int64_t> nodes = {};       ///< none: 1, 2, 4, ... as many as the platform has, up to 1,024
  std::vector<std::string> models = {};  ///< none: S, B, L, XL, or the recorded one
  std::vector<config::Strategy> strategies = {config::Strategy::kCftp};
  std::vector<Way> ways = {Way::kTwoLevel};
  int64_t batch = 28;        ///< images per die (weak scaling; the paper: 112 on 4 dies), of a recording those per rank
  int64_t global_batch = 0;  ///< of all nodes (strong scaling); 0: weak
  std::vector<double> shares = {};  ///< of the peak that a die reaches; none: the platform's
  DType precision = DType::kF32;
  std::vector<std::string> sets = {};  ///< config keys, "a.b=v"
  /// Run folder whose steps give the compute times, for `batch` images per rank; strategy, model, precision and share
  /// of the peak are its own. "": counts of the plan
  std::string recording = {};
  SimulationOptions simulation = {};
};

/// A row per model, share, strategy, way and number of nodes, in this order.
/// Time      of a step; no repeats of a clock: it is simulated
/// Details   model, nodes, dies, strategy, ranks, way, batch (global), share, images_per_second, efficiency: images/s
///           per node by that of the least number of nodes in the same series; compute_s, update_s, exposed_s (waiting
///           for sums although no rank is slower), slower_s (for slower ranks), tensor_s (sums of dp_tp, in compute_s),
///           limits: the largest of what is not compute, if it takes 1 % of the step; simulation_s, peak_rss_bytes,
///           messages
/// Strategies: cftp is one rank per node whose clusters are the dies; dp one rank per die; dp_tp as dp, with as many
///           ranks per replica as divide dies and heads.
/// Times     compute: FLOP of the plan (work_of) by the dies' FLOP/s times share; update: 9 passes over the rank's
///           parameters by the bandwidth of its dies; sums in a node by Platform::inside. A recording gives both as
///           measured (medians of its steps but the first) for the batch per rank that it had.
/// Errors:   InputError for a platform with fewer nodes, dies that the model does not divide over, recordings of
///           another build or config or without steps, a ring over more than kMostRingNodes, and in builds that lack
///           SimGrid
void bench_scale(Harness& harness, const ScaleBench& bench);

}  // namespace ditrain::bench
