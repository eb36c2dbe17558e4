// All-reduces gradients during the computation: the progress thread of the communicator owns the operations under way,
// at most two at a time, in the order in which they were started.
//
//   flat          one MPI_Iallreduce over all ranks (tested by the thread, since MPI does not progress by itself)
//   hierarchical  ranks of a node sum through the memory that they share (NodeMemory): each sums its slice of a bucket
//                 over the arenas of all, in rank order. The first ranks of the nodes then exchange slices: each gets
//                 1/nodes of the bucket from every other, adds in node order and sends the sum back, which moves
//                 2 (n-1)/n of the bucket over the wire, in f32 or rounded to bf16 with f32 sums; a node rounds its own
//                 slice, too, so that other buckets have the same bits. Then the result is copied to the arenas of the
//                 node. On one node this is a single pass: a piece in cache is summed,
//                 squared and copied.
//
// The ranks of a node, and then the nodes, are added one after the other, or along a tree (sums.hpp). With the tree,
// 1, 2, 4, ... ranks whose terms are subtrees of one tree get bit-identical sums.
//
// The same pass computes the sum of squares of the result. Its parts have constant length and are added in a fixed
// order, so that it is bit-identical on all ranks for any number of ranks per node.
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
  DType wire = DType::kF32;            ///< type of messages between nodes (hierarchical only): f32 or bf16
  bool shards = false;                 ///< sums need only be valid in a rank's shard_of(n); implies gathers
  bool gathers = false;                ///< start_allgather() is available
  bool tree = false;                   ///< sums along the tree of sums.hpp (hierarchical, f32)
  std::optional<LinkModel> link = {};  ///< simulated link; sums queue on it
  std::vector<int> pus = {};           ///< cores of the progress thread; empty: it shares the process's cores
  static constexpr int kMostInFlight = 2;
  int max_in_flight = kMostInFlight;
};

/// Bytes that the first rank of each of `nodes` nodes allocates to exchange a sum of n elements with the other nodes:
/// what they send to it and, with bf16, what it sends to them. An engine makes one such exchange at a time: of two
/// operations under way the second waits for the first. Other ranks, a single node and gatherings take none.
size_t exchange_bytes(int64_t n, int nodes, DType wire);

/// Runs all-reduces and all-gathers of a gradient arena. With one rank it starts no thread, and start_allreduce_sum
/// leaves the data as they are.
/// Threads: one thread uses start_allreduce_sum, start_allgather and their requests
class Engine {
 public:
  /// Collective. Data of hierarchical sums must be in this rank's part of `arena`, which must outlive the engine.
  /// Errors:   InputError if config.tree does not fit the placement of the ranks, see expect_subtrees()
  Engine(Communicator& communicator, NodeMemory& arena, const EngineConfig& config);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts an all-reduce, as Communicator::start_allreduce_sum. The request has an outcome(), unless there is only one
  /// rank. `whole`: all sums are valid on all ranks, even with config.shards.
  std::unique_ptr<Request> start_allreduce_sum(float* data, int64_t n, bool whole = false);

  /// Starts an all-gather (with config.gathers): for i < n, data[i] is copied from the rank whose shard_of(n), with
  /// this cut, has i. `data` must be in the arena, also if sums are flat; values are never rounded. All ranks start
  /// all-gathers and sums in the same order. sum_squares is 0.
  /// Traffic:  on one node each rank copies its shard to the others. Between nodes every first rank sends its node's
  /// shards to every other one, so each node receives (nodes-1)/nodes of the data (together with a sum that is whole: 3
  /// instead of 2 (n-1)/n of the data)
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
