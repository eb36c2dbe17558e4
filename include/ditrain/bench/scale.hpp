// Simulates training steps on clusters that are not available: the trainer's schedule in SimGrid, on a platform of
// configs/platforms. It reproduces the paper's Figures 10 and 11, and its strategies (Table 2) beyond one node.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/base/words.hpp"
#include "ditrain/bench/harness.hpp"
#include "ditrain/config/config.hpp"

namespace ditrain::bench {

/// Algorithms that sum gradients over ranks, on n nodes.
enum class SumAlgorithm {
  kTwoLevel,        ///< as the engine: node memory, then first ranks exchange slices, 2 (n-1)/n of the bytes
  kRing,            ///< one ring over all ranks: equal bytes, 2 (ranks - 1) latencies
  kShards,          ///< dist.shard_optimizer as the engine does it: two-level sums, then all-gather of new weights
  kReduceScatter,   ///< reduce-scatter to the nodes that own the shards, then all-gather: 2 (n-1)/n of the bytes
  kOuter,           ///< dist.outer: no messages for outer_every - 1 steps, then one all-reduce of the parameters
  kOuterOverlapped  ///< as kOuter, with an all-reduce that overlaps with the next steps
};
inline constexpr Word<SumAlgorithm> kSumAlgorithms[] = {
    {"two_level", SumAlgorithm::kTwoLevel}, {"ring", SumAlgorithm::kRing},
    {"shards", SumAlgorithm::kShards},      {"reduce_scatter", SumAlgorithm::kReduceScatter},
    {"outer", SumAlgorithm::kOuter},        {"outer_overlapped", SumAlgorithm::kOuterOverlapped}};
constexpr std::span<const Word<SumAlgorithm>> words_of(SumAlgorithm) { return kSumAlgorithms; }

/// Limit of a simulated ring, which sends 2 (ranks - 1) dependent messages per bucket and rank.
inline constexpr int kMostRingNodes = 64;

struct SimulationOptions {
  SumAlgorithm algorithm = SumAlgorithm::kTwoLevel;
  int64_t outer_every = 50;  ///< outer algorithms: steps per outer step (H)
  int64_t steps = 0;         ///< steps after a first one (outer algorithms: times outer_every); 0: 1, with jitter 2
  int rounds = 4;            ///< how many of the n - 1 equal rounds of a sum are simulated; 0: every message
  bool every_die = false;    ///< simulate the ranks of a node with messages; false: their time is a formula
  double jitter = 0;         ///< standard deviation of the logarithm of each die's compute time, anew in each step
  int64_t slow_nodes = 0;    ///< number of nodes, drawn by the seed, whose compute takes slow_factor times as long
  double slow_factor = 1.5;
  double busy_links = 0;    ///< share of the links (of nodes and switches), drawn by the seed, with other traffic
  double busy_share = 0.5;  ///< the share of those links' bandwidth that other traffic takes
  double message_us = 0.5;  ///< microseconds of a first rank's thread per message that it sends or receives
  int64_t seed = 0;
};

struct ScaleBench {
  std::string platform;                  ///< file
  std::vector<int64_t> nodes = {};       ///< empty: 1, 2, 4, ... as many as the platform has, up to 1,024
  std::vector<std::string> models = {};  ///< empty: S, B, L, XL, or the recorded model
  std::vector<config::Strategy> strategies = {config::Strategy::kCftp};
  std::vector<SumAlgorithm> algorithms = {SumAlgorithm::kTwoLevel};
  int64_t batch = 28;        ///< images per die (weak scaling; the paper: 112 on 4 dies); with a recording, per rank
  int64_t global_batch = 0;  ///< images on all nodes (strong scaling); 0: weak scaling
  std::vector<double> shares = {};  ///< shares of the peak that a die reaches; empty: the platform's
  DType precision = DType::kF32;
  std::vector<std::string> sets = {};  ///< config keys, "a.b=v"
  /// Run folder whose recorded steps give the compute times, for `batch` images per rank; strategy, model, precision
  /// and share of the peak are those of the run. "": compute times follow from the FLOP of the plan
  std::string recording = {};
  SimulationOptions simulation = {};
};

/// One row per model, share, strategy, way and number of nodes, in this order.
/// Time      of a step, simulated: there are no repeats
/// Details   model, nodes, dies, strategy, ranks, way, batch (global), share, images_per_second, efficiency: images/s
///           per node / the same at the least number of nodes in the series; compute_s, update_s, exposed_s (waiting
///           for sums that no slower rank delays), slower_s (waiting for slower ranks), tensor_s (sums of dp_tp, part
///           of compute_s), limits: the largest part besides compute, if it takes at least 1 % of the step;
///           simulation_s, peak_rss_bytes, messages
/// Strategies: cftp has one rank per node, whose clusters are the dies; dp one rank per die; dp_tp is dp with the
/// largest number of ranks per replica that divides dies and heads.
/// Times     compute: FLOP of the plan (work_of) / (FLOP/s of the dies x share); update: 9 passes over the rank's
///           parameters / bandwidth of its dies, and its products (Muon) as those of compute; sums in a node by
///           ClusterDescription::inside. A recording gives compute and update as measured (medians of its steps but the
///           first), for the batch per rank that it had.
/// Errors:   InputError, before anything is simulated, for a platform with fewer nodes, dies that the model does not
///           divide over, recordings of another build or config or without steps, a ring over more than kMostRingNodes,
///           recordings whose shards or dist.outer differ from the algorithm, sets of parallel.threads and
///           parallel.clusters, and in builds that lack SimGrid; RunError if a simulation fails
void bench_scale(Harness& harness, const ScaleBench& bench);

}  // namespace ditrain::bench
