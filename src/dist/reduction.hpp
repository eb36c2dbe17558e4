// One sum of gradients under way, in phases that the progress thread moves on. Implementations: flat_reduction.cpp
// (MPI), node_reduction.cpp (shared memory and messages between nodes).
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "ditrain/base/dtype.hpp"
#include "ditrain/dist/communicator.hpp"
#include "ditrain/dist/node_memory.hpp"
#include "ditrain/dist/shards.hpp"
#include "ditrain/dist/sums.hpp"

namespace ditrain::dist {

class Reduction {
 public:
  virtual ~Reduction() = default;
  /// Goes on as far as possible without waiting, but to no phase that `before`, the reduction started before this one
  /// (nullptr: it is over), has not left: all ranks then see phases of one order.
  virtual PollResult advance(const Reduction* before) = 0;

  bool done() const { return phase_ == kDone; }
  double sum_squares() const { return sum_squares_; }

 protected:
  static constexpr int kDone = 100;
  bool may_enter(int phase, const Reduction* before) const { return before == nullptr || before->phase_ > phase; }

  int phase_ = 0;
  double sum_squares_ = 0;
};

std::unique_ptr<Reduction> make_flat_reduction(Communicator& communicator, float* data, int64_t n);

/// What hierarchical reductions of one run share.
class NodeGroup {
 public:
  /// Collective. max_elements: of one reduction. tree: terms are added along the tree of sums.hpp, ranks of a node,
  /// then nodes, as expect_subtrees() wants them; else one after the other.
  NodeGroup(Communicator& communicator, NodeMemory& arena, DType wire, bool tree, int64_t max_elements);
  ~NodeGroup();
  NodeGroup(const NodeGroup&) = delete;
  NodeGroup& operator=(const NodeGroup&) = delete;

  /// Number `sequence` (increasing, the same on all ranks) of the run; `data`, n elements, lies in this rank's part of
  /// the arena. Their sums come to all ranks, or (only_shards) each at least to the rank whose shard_of(n) it is in.
  std::unique_ptr<Reduction> start_sum(uint32_t sequence, float* data, int64_t n, bool only_shards);
  /// Without a sum, from the rank whose shard_of(n) of this cut it is in to all ranks.
  std::unique_ptr<Reduction> start_gather(uint32_t sequence, float* data, int64_t n, const ShardCut& cut);

  /// Tells the others that this rank is in the middle of something, so that they look again.
  void wake_all();

  /// What a rank tells the others of its node: how many reductions have left a phase. On cache lines of its own.
  struct alignas(64) Post {
    std::atomic<uint32_t> wake_flag{0};
    alignas(64) std::atomic<uint32_t> arrived{0};    ///< the rank's gradients are final
    alignas(64) std::atomic<uint32_t> reduced{0};    ///< its slice of the node's sum is made
    alignas(64) std::atomic<uint32_t> exchanged{0};  ///< the sum over nodes is in the first rank's arena
    alignas(64) std::atomic<uint32_t> spread{0};     ///< its slice has been written to all arenas
  };
  Post& post(int local_rank) const { return *reinterpret_cast<Post*>(control_.part(local_rank)); }
  Post& own_post() const { return post(arena_.own_part()); }
  /// Sums of squares of the pieces of a reduction, kept by the first rank; two reductions may be under way.
  double* squares(uint32_t sequence) const;
  bool all_passed(std::atomic<uint32_t> Post::*counter, uint32_t sequence) const;

  Communicator& communicator() const { return communicator_; }
  const NodeMemory& arena() const { return arena_; }
  int num_parts() const { return arena_.num_parts(); }
  bool leads() const { return arena_.own_part() == 0; }
  const std::vector<int>& leaders() const { return leaders_; }  ///< first ranks of the nodes, in order
  /// For each leader, whose memory it reaches: its node's ranks, or itself alone.
  const std::vector<std::vector<int>>& led() const { return led_; }
  DType wire() const { return wire_; }
  bool tree() const { return tree_; }
  /// False: the progress thread sleeps on the word of another group, and has to look by itself.
  bool can_be_woken() const { return can_be_woken_; }

 private:
  std::unique_ptr<Reduction> start(uint32_t sequence, float* data, int64_t n, bool only_shards,
                                   const std::optional<ShardCut>& gather);

  Communicator& communicator_;
  NodeMemory& arena_;
  NodeMemory control_;
  DType wire_;
  bool tree_;
  bool can_be_woken_ = false;
  int64_t max_pieces_;
  std::vector<int> leaders_;
  std::vector<std::vector<int>> led_;
};

/// The exchange of one bucket between the first ranks of the nodes; created by each of them. `sequence` keeps messages
/// of two exchanges apart.
class LeaderExchange {
 public:
  LeaderExchange(const NodeGroup& group, uint32_t sequence, float* data, int64_t n);
  ~LeaderExchange();
  /// True once `data` holds the sum over nodes, the same bits on all of them.
  bool advance();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Brings the shards (of this cut) of each node's ranks to the first ranks of all others; `data` has those of its own
/// node.
class ShardExchange {
 public:
  ShardExchange(const NodeGroup& group, uint32_t sequence, float* data, int64_t n, const ShardCut& cut);
  /// True once `data` is whole.
  bool advance();

 private:
  std::vector<std::unique_ptr<Request>> requests_;
};

}  // namespace ditrain::dist
