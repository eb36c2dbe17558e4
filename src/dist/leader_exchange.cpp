// Reduce-scatter and all-gather by messages: each leader sums its slice in node order, or along the tree, and sends the
// sum to the others.
#include <algorithm>
#include <cstring>

#include "ditrain/dist/engine.hpp"
#include "ditrain/dist/shards.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/parallel/partition.hpp"
#include "reduction.hpp"

namespace ditrain::dist {

namespace {

// The first of two tags: an exchange may need a second one. Exchanges that are far apart may share tags.
int exchange_tag(uint32_t sequence) { return int(2 * (sequence % 4096)); }

parallel::Range slice_of(int64_t n, int node, int nodes) { return parallel::partition(n, node, nodes, 16); }

/// Slices of the others, each as long as the longest, which is the first; later (bf16) the sums of all slices.
int64_t inbox_elements(int64_t n, int nodes) { return std::max(n, slice_of(n, 0, nodes).size() * nodes); }

}  // namespace

size_t exchange_bytes(int64_t n, int nodes, DType wire) {
  if (nodes == 1) return 0;
  return size_t(inbox_elements(n, nodes) + (wire == DType::kBF16 ? n : 0)) * dtype_bytes(wire);
}

struct LeaderExchange::State {
  Communicator& communicator;
  const std::vector<int>& leaders;
  const DType wire;
  const bool tree;
  const int tag;  // of the slices; that of the sums is one more
  float* const data;
  const int64_t n;
  int self = 0;
  bool summed = false;
  std::vector<std::byte> inbox;   // slices of the others, then (bf16) their sums
  std::vector<BFloat16> rounded;  // what is sent in bf16
  std::vector<std::unique_ptr<Request>> requests = {};

  parallel::Range slice(int node) const { return slice_of(n, node, int(leaders.size())); }
  bool rounds() const { return wire == DType::kBF16; }
  size_t bytes(int64_t elements) const { return size_t(elements) * dtype_bytes(wire); }

  void send(int node, const parallel::Range& range, int with_tag) {
    const void* from = rounds() ? static_cast<const void*>(rounded.data() + range.begin) : data + range.begin;
    requests.push_back(communicator.start_send(from, bytes(range.size()), leaders[size_t(node)], with_tag));
  }
  void receive(int node, void* to, int64_t elements) {
    requests.push_back(communicator.start_receive(to, bytes(elements), leaders[size_t(node)], summed ? tag + 1 : tag));
  }
  template <class F>
  void for_others(F f) {
    for (int node = 0; node < int(leaders.size()); ++node)
      if (node != self) f(node);
  }

  void start() {
    while (leaders[size_t(self)] != communicator.rank()) ++self;
    const int64_t mine = slice(self).size();
    inbox.resize(bytes(inbox_elements(n, int(leaders.size()))));
    for_others([&](int node) { receive(node, inbox.data() + bytes(mine * node), mine); });
    if (rounds()) {
      rounded.resize(size_t(n));
      kernels::convert(data, rounded.data(), n);
    }
    for_others([&](int node) { send(node, slice(node), tag); });
  }

  /// y = elements first ... first + count of my slice as `node` brought it. My own are rounded, too: how buckets are
  /// cut decides which slices are mine, and must not change the bits.
  void load(int node, int64_t first, int64_t count, float* y) const {
    const int64_t own_at = slice(self).begin + first, at = slice(self).size() * node + first;
    if (rounds()) {
      const auto* theirs = reinterpret_cast<const BFloat16*>(inbox.data()) + at;
      return kernels::convert(node == self ? rounded.data() + own_at : theirs, y, count);
    }
    const auto* theirs = reinterpret_cast<const float*>(inbox.data()) + at;
    std::memcpy(y, node == self ? data + own_at : theirs, size_t(count) * sizeof(float));
  }

  /// y = the sum of those elements over nodes begin ... end - 1.
  void sum(int begin, int end, int64_t first, int64_t count, float* y) const {
    if (end - begin == 1) return load(begin, first, count, y);
    float more[kPiece];
    if (tree) {
      const int middle = begin + (end - begin) / 2;
      sum(begin, middle, first, count, y);
      sum(middle, end, first, count, more);
      return kernels::add(more, y, count);
    }
    load(begin, first, count, y);
    for (int node = begin + 1; node < end; ++node) {
      load(node, first, count, more);
      kernels::add(more, y, count);
    }
  }

  void sum_slice() {
    const parallel::Range mine = slice(self);
    float total[kPiece];
    for (int64_t first = 0; first < mine.size(); first += kPiece) {
      const int64_t count = std::min(kPiece, mine.size() - first);
      sum(0, int(leaders.size()), first, count, total);
      std::memcpy(data + mine.begin + first, total, size_t(count) * sizeof(float));
    }
    if (!rounds()) return;
    // The others get the rounded sum: this node has to have the same bits.
    kernels::convert(data + mine.begin, rounded.data() + mine.begin, mine.size());
    kernels::convert(rounded.data() + mine.begin, data + mine.begin, mine.size());
  }

  void start_gather() {
    summed = true;
    requests.clear();
    for_others([&](int node) {
      const parallel::Range theirs = slice(node);
      void* to = rounds() ? static_cast<void*>(inbox.data() + bytes(theirs.begin)) : data + theirs.begin;
      receive(node, to, theirs.size());
    });
    for_others([&](int node) { send(node, slice(self), tag + 1); });
  }

  void widen_sums() {
    if (!rounds()) return;
    for_others([&](int node) {
      const parallel::Range theirs = slice(node);
      kernels::convert(reinterpret_cast<const BFloat16*>(inbox.data()) + theirs.begin, data + theirs.begin,
                       theirs.size());
    });
  }

  bool all_done() {
    bool done = true;
    for (const auto& request : requests) done = request->test() && done;
    return done;
  }
};

LeaderExchange::LeaderExchange(const NodeGroup& group, uint32_t sequence, float* data, int64_t n)
    : state_(new State{.communicator = group.communicator(),
                       .leaders = group.leaders(),
                       .wire = group.wire(),
                       .tree = group.tree(),
                       .tag = exchange_tag(sequence),
                       .data = data,
                       .n = n,
                       .inbox = {},
                       .rounded = {}}) {
  state_->start();
}

LeaderExchange::~LeaderExchange() = default;

bool LeaderExchange::advance() {
  State& s = *state_;
  if (!s.all_done()) return false;
  if (!s.summed) {
    s.sum_slice();
    s.start_gather();
    if (!s.all_done()) return false;
  }
  s.widen_sums();
  return true;
}

ShardExchange::ShardExchange(const NodeGroup& group, uint32_t sequence, float* data, int64_t n, const ShardCut& cut) {
  Communicator& communicator = group.communicator();
  const int tag = exchange_tag(sequence);
  size_t own = 0;
  while (group.leaders()[own] != communicator.rank()) ++own;
  for (size_t node = 0; node < group.leaders().size(); ++node) {
    if (node == own) continue;
    const int other = group.leaders()[node];
    for (const int rank : group.led()[node]) {
      const parallel::Range theirs = shard_of(n, rank, communicator.world_size(), cut);
      if (!theirs.empty())
        requests_.push_back(
            communicator.start_receive(data + theirs.begin, size_t(theirs.size()) * sizeof(float), other, tag));
    }
    for (const int rank : group.led()[own]) {
      const parallel::Range ours = shard_of(n, rank, communicator.world_size(), cut);
      if (!ours.empty())
        requests_.push_back(
            communicator.start_send(data + ours.begin, size_t(ours.size()) * sizeof(float), other, tag));
    }
  }
}

bool ShardExchange::advance() {
  bool done = true;
  for (const auto& request : requests_) done = request->test() && done;
  return done;
}

}  // namespace ditrain::dist
