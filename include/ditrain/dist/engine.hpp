// All-reduces gradients during the computation: the progress thread of the communicator owns the operations under way,
// at most two at a time, in the order in which they were started.
//
//   flat          one MPI_Iallreduce over all ranks (tested by the thread, since MPI does not progress by itself)
//   hierarchical  ranks of a node sum through the memory that they share (NodeMemory), each its slice of a bucket over
//                 the arenas of all, in rank order; the first ranks of the nodes then exchange slices (each gets
//                 1/nodes of the bucket from every other, adds in node order, sends the sum back: 2 (n-1)/n of the
//                 bucket over the wire, in f32 or rounded to bf16 with f32 sums); the result is spread over the arenas
//                 of the node. On one node the two passes are one: a piece in cache is summed, squared and copied.
//
// A node's terms, and then the nodes', are added one after the other, or along a tree (sums.hpp): then 1, 2, 4, ...
// ranks with the subtrees of one tree as their terms get bit-identical sums.
//
// That pass also gives the sum of squares of the result. Its parts (of constant length) are added in one order, so that
// the result is bit-identical on all ranks for any number of ranks per node.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/base/dtype.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/dist/link_model.hpp"
#include "ditrain/dist/node_memory.hpp"
#include "ditrain/dist/shards.hpp"
#include "ditrain/dist/sums.hpp"

namespace ditrain::dist {

struct EngineConfig {
  bool hierarchical = true;
  DType wire = DType::kF32;            ///< between nodes (hierarchical only): f32 or bf16
  bool shards = false;                 ///< sums need only be valid in a rank's shard_of(n); implies gathers
  bool gathers = false;                ///< start_allgather() is available
  bool tree = false;                   ///< sums along the tree of sums.hpp (hierarchical, f32)
  std::optional<LinkModel> link = {};  ///< simulated link; sums queue on it
  std::vector<int> pus = {};           ///< cores of the progress thread; empty: it shares the process's cores
  static constexpr int kMostInFlight = 2;
  int max_in_flight = kMostInFlight;
};

/// Bytes that the first rank of each of `nodes` nodes allocates to exchange a sum of n elements with the others: what
/// they send it, and with bf16 what it sends them. An engine has one such exchange at a time, because of two operations
/// under way the second one waits for the first to leave it. Other ranks, one node and gatherings take none.
size_t exchange_bytes(int64_t n, int nodes, DType wire);

/// With one rank no thread is started, and start_allreduce_sum leaves the data as they are.
/// Threads: start_allreduce_sum, start_allgather and their requests are used by one thread.
class Engine {
 public:
  /// Collective. Hierarchical sums want their data in the communicator's part of `arena`, which must outlive the
  /// engine.
  /// Errors:   InputError if config.tree does not fit the placement of the ranks, see expect_subtrees()
  Engine(Communicator& communicator, NodeMemory& arena, const EngineConfig& config);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// data[i] becomes the sum over ranks for i < n, as Communicator::start_allreduce_sum, with the same n on all ranks.
  /// The request has an outcome(), unless there is one rank only. `whole`: valid everywhere, also with config.shards.
  std::unique_ptr<Request> start_allreduce_sum(float* data, int64_t n, bool whole = false);

  /// With config.gathers: data[i] becomes what the rank has whose shard_of(n) of this cut holds i, for i < n: a part
  /// of the arena, however sums are made, and never rounded. Started in one order with the sums. sum_squares is 0.
  /// Traffic:  on one node each rank copies its shard to the others. Between nodes every first rank sends its node's
  ///           shards to every other one, (nodes-1)/nodes of the data in for each node (after a sum that was made whole
  ///           there 3 instead of 2 (n-1)/n of the data together).
  std::unique_ptr<Request> start_allgather(float* data, int64_t n, const ShardCut& cut = {});

  Communicator& communicator() const;
  std::string description() const;             ///< one line for the log
  const std::string& binding_failure() const;  ///< why the thread is not bound to its cores; "": bound

 private:
  struct State;
  std::unique_ptr<Request> start(float* data, int64_t n, bool only_shards, const std::optional<ShardCut>& gather);
  std::shared_ptr<State> state_;
  const int exceptions_;
};

}  // namespace ditrain::dist
