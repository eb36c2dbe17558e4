// Sums through the memory of a node, and between nodes through their first ranks. A rank owns a slice of each bucket
// (whole pieces) and is the only one that writes the arenas there until the others are told.
#include <algorithm>
#include <cstring>

#include "ditrain/base/error.hpp"
#include "ditrain/dist/shards.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/parallel/partition.hpp"
#include "reduction.hpp"

namespace ditrain::dist {
namespace {

using Post = NodeGroup::Post;

// Counters wrap after 2^32 buckets: compare differences.
bool passed(uint32_t counter, uint32_t sequence) { return int32_t(counter - sequence) > 0; }

class NodeReduction final : public Reduction {
 public:
  /// gather: none for a sum.
  NodeReduction(NodeGroup& group, uint32_t sequence, float* data, int64_t n, bool only_shards,
                const std::optional<ShardCut>& gather)
      : group_(group),
        sequence_(sequence),
        only_shards_(only_shards),
        gather_cut_(gather),
        offset_(n > 0 ? reinterpret_cast<std::byte*>(data) - group.arena().part(group.arena().own_part()) : 0),
        n_(n),
        mine_(parallel::partition(num_pieces(n), group.arena().own_part(), group.num_parts())) {
    publish(&Post::arrived);
  }

  PollResult advance(const Reduction* before) override {
    PollResult result;
    for (int phase = -1; phase != phase_ && !done();) {
      phase = phase_;
      if (!may_enter(phase_, before)) break;
      step(result);
      result.progressed = result.progressed || phase != phase_;
    }
    result.poll = result.poll || !group_.can_be_woken();
    return result;
  }

 private:
  enum Phase { kGather, kExchange, kSpread, kFinish };

  void step(PollResult& result) {
    switch (phase_) {
      case kGather:
        if (group_.all_passed(&Post::arrived, sequence_)) sums() ? gather() : gather_shard();
        return;
      case kExchange:
        return exchange(result);
      case kSpread:
        if (passed(group_.post(0).exchanged, sequence_)) spread();
        return;
      case kFinish:
        if (group_.all_passed(&Post::spread, sequence_)) finish();
        return;
    }
  }

  bool sums() const { return !gather_cut_; }
  bool one_node() const { return group_.leaders().size() == 1; }

  float* arena(int part, int64_t first) const {
    return reinterpret_cast<float*>(group_.arena().part(part) + offset_) + first;
  }

  void publish(std::atomic<uint32_t> Post::*counter) {
    (group_.own_post().*counter).store(sequence_ + 1);
    group_.wake_all();
  }

  /// Into part 0; with a tree, other parts are left with sums of their subtrees.
  void add_parts(int64_t first, int64_t count) const {
    const int parts = group_.num_parts();
    if (!group_.tree())
      for (int part = 1; part < parts; ++part) kernels::add(arena(part, first), arena(0, first), count);
    else
      for (int step = 1; step < parts; step *= 2)
        for (int part = 0; part < parts; part += 2 * step)
          kernels::add(arena(part + step, first), arena(part, first), count);
  }
  void copy_part(int from, int to, int64_t first, int64_t count) const {
    if (from != to) std::memcpy(arena(to, first), arena(from, first), size_t(count) * sizeof(float));
  }
  void copy_to_parts(int from, int64_t first, int64_t count) const {
    for (int part = 0; part < group_.num_parts(); ++part) copy_part(from, part, first, count);
  }

  void gather() {
    double* squares = group_.squares(sequence_);
    for (int64_t piece = mine_.begin; piece < mine_.end; ++piece) {
      const int64_t first = piece * kPiece, count = std::min(kPiece, n_ - first);
      add_parts(first, count);
      if (!one_node()) continue;
      squares[piece] = kernels::sum_squares(arena(0, first), count);
      // On one node the slices are the shards.
      if (only_shards_)
        copy_part(0, group_.arena().own_part(), first, count);
      else
        copy_to_parts(0, first, count);
    }
    enter_next_phase();
  }

  /// This rank's shard, to all parts of the only node or to the one from which it leaves.
  void gather_shard() {
    const Communicator& communicator = group_.communicator();
    const parallel::Range shard = shard_of(n_, communicator.rank(), communicator.world_size(), *gather_cut_);
    if (one_node())
      copy_to_parts(group_.arena().own_part(), shard.begin, shard.size());
    else
      copy_part(group_.arena().own_part(), 0, shard.begin, shard.size());
    enter_next_phase();
  }

  void enter_next_phase() {
    phase_ = one_node() ? kFinish : kExchange;
    publish(one_node() ? &Post::spread : &Post::reduced);
  }

  void exchange(PollResult& result) {
    if (!group_.leads()) return void(phase_ = kSpread);
    if (!sum_exchange_ && !shard_exchange_) {
      if (!group_.all_passed(&Post::reduced, sequence_)) return;
      if (sums())
        sum_exchange_ = std::make_unique<LeaderExchange>(group_, sequence_, arena(0, 0), n_);
      else
        shard_exchange_ = std::make_unique<ShardExchange>(group_, sequence_, arena(0, 0), n_, *gather_cut_);
    }
    result.poll = true;
    if (sums() ? !sum_exchange_->advance() : !shard_exchange_->advance()) return;
    sum_exchange_.reset();
    shard_exchange_.reset();
    phase_ = kSpread;
    publish(&Post::exchanged);
  }

  void spread() {
    double* squares = group_.squares(sequence_);
    for (int64_t piece = mine_.begin; piece < mine_.end; ++piece) {
      const int64_t first = piece * kPiece, count = std::min(kPiece, n_ - first);
      if (sums()) squares[piece] = kernels::sum_squares(arena(0, first), count);
      copy_to_parts(0, first, count);
    }
    phase_ = kFinish;
    publish(&Post::spread);
  }

  void finish() {
    const double* squares = group_.squares(sequence_);
    for (int64_t piece = 0; sums() && piece < num_pieces(n_); ++piece) sum_squares_ += squares[piece];
    phase_ = kDone;
  }

  NodeGroup& group_;
  const uint32_t sequence_;
  const bool only_shards_;
  const std::optional<ShardCut> gather_cut_;
  const ptrdiff_t offset_;  // bytes from the start of a part
  const int64_t n_;
  const parallel::Range mine_;  // pieces
  std::unique_ptr<LeaderExchange> sum_exchange_;
  std::unique_ptr<ShardExchange> shard_exchange_;
};

std::vector<int> first_ranks(const Communicator& communicator, bool every_rank) {
  const std::vector<int> nodes = communicator.nodes();
  std::vector<int> leaders;
  for (int rank = 0; rank < communicator.world_size(); ++rank)
    if (every_rank || nodes[size_t(rank)] == int(leaders.size())) leaders.push_back(rank);
  return leaders;
}

std::vector<std::vector<int>> ranks_led(const Communicator& communicator, const std::vector<int>& leaders) {
  const std::vector<int> nodes = communicator.nodes();
  const bool every_rank = int(leaders.size()) == communicator.world_size();
  std::vector<std::vector<int>> led;
  for (const int leader : leaders) {
    led.push_back({leader});
    for (int rank = leader + 1; !every_rank && rank < int(nodes.size()); ++rank)
      if (nodes[size_t(rank)] == nodes[size_t(leader)]) led.back().push_back(rank);
  }
  return led;
}

size_t control_bytes(int64_t max_pieces) { return sizeof(Post) + 2 * size_t(max_pieces) * sizeof(double); }

}  // namespace

NodeGroup::NodeGroup(Communicator& communicator, NodeMemory& arena, DType wire, bool tree, int64_t max_elements)
    : communicator_(communicator),
      arena_(arena),
      control_(communicator, control_bytes(num_pieces(max_elements) + 1), /*may_share=*/!arena.refused()),
      wire_(wire),
      tree_(tree),
      max_pieces_(num_pieces(max_elements) + 1),
      leaders_(first_ranks(communicator, arena.refused())),
      led_(ranks_led(communicator, leaders_)) {
  // The arena is there already, so this cannot fail for any reason but lack of memory.
  if (control_.num_parts() != arena_.num_parts())
    throw RunError({.where = "dist", .what = "no shared memory for counters", .got = control_.note()});
  new (control_.part(arena_.own_part())) Post;
  communicator.barrier();
  can_be_woken_ = communicator_.progress_thread()->use_wake_flag(&own_post().wake_flag);
}

NodeGroup::~NodeGroup() {
  if (can_be_woken_) communicator_.progress_thread()->use_wake_flag(nullptr);
}

double* NodeGroup::squares(uint32_t sequence) const {
  auto* first = reinterpret_cast<double*>(control_.part(0) + sizeof(Post));
  return first + (sequence % 2) * max_pieces_;
}

bool NodeGroup::all_passed(std::atomic<uint32_t> Post::*counter, uint32_t sequence) const {
  for (int i = 0; i < num_parts(); ++i)
    if (!passed(post(i).*counter, sequence)) return false;
  return true;
}

void NodeGroup::wake_all() {
  for (int i = 0; i < num_parts(); ++i)
    if (i != arena_.own_part()) raise_wake_flag(post(i).wake_flag);
}

std::unique_ptr<Reduction> NodeGroup::start_sum(uint32_t sequence, float* data, int64_t n, bool only_shards) {
  return start(sequence, data, n, only_shards, std::nullopt);
}
std::unique_ptr<Reduction> NodeGroup::start_gather(uint32_t sequence, float* data, int64_t n, const ShardCut& cut) {
  return start(sequence, data, n, false, cut);
}

std::unique_ptr<Reduction> NodeGroup::start(uint32_t sequence, float* data, int64_t n, bool only_shards,
                                            const std::optional<ShardCut>& gather) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const std::byte* part = arena_.part(arena_.own_part());
  DITRAIN_CHECK(n == 0 || (bytes >= part && bytes + n * int64_t(sizeof(float)) <= part + arena_.part_bytes()),
                "gradients outside of the arena");
  return std::make_unique<NodeReduction>(*this, sequence, data, n, only_shards, gather);
}

}  // namespace ditrain::dist
