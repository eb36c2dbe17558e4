// A model of a core with a tile unit (Emerald or Granite Rapids), which predicts the cycles that operations take: lines
// in caches by their addresses, operations issued in order and as far ahead as a window of micro-operations allows, and
// for each resource the time when it is free again. What it predicts is a count, no measurement: see
// unit_counts_test.cpp for how far it agrees with the processor.
#pragma once
#include <algorithm>
#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include "../../src/kernels/isa/unit_listener.hpp"

namespace ditrain::kernels {

/// Cycles unless said otherwise. Those marked * are fitted to plain loops that were measured, all with the same values;
/// products, stores of tiles and lines of the L1 cache are as Intel states them.
struct CoreConstants {
  static constexpr double kProduct = 16, kProductLatency = 52, kTileStore = 16;
  static constexpr double kLineL1 = 0.5;
  static constexpr double kLineL2 = 2.1;     ///< * 32 of a tile
  static constexpr double kLineL3 = 6;       ///< * a stream that is fetched ahead
  static constexpr double kLineMemory = 14;  ///< likewise
  static constexpr double kWriteBack = 3;    ///< * of a line to beyond the L2 cache
  static constexpr double kTileAhead = 24;   ///< * a tile's load begins so long before its register is free
  static constexpr double kLatencyL1 = 5, kLatencyL2 = 14, kLatencyStream = 20;
  static constexpr double kLatencyL3 = 230;  ///< of a line that no stream brings, and of each software prefetch
  static constexpr int kMisses = 16;         ///< such lines on their way at the same time
  static constexpr int kFillBuffers = 16;    ///< lines on their way to the L1 cache, software prefetches included
  static constexpr double kWidth = 6;        ///< micro-operations issued in a cycle
  static constexpr int kWindow = 512, kStoreBuffer = 72;
  static constexpr double kVectorWork = 1, kVectorOperations = 2;  ///< beside each load of a vector: time, operations
};

/// Lines in sets, the least recently used leaves; a `soft` one also keeps half of what has lately left: a line that is
/// used again after 1 to 2 times the cache's size is there with odds that fall to zero.
class CacheModel {
 public:
  struct Line {
    uint64_t address = kNone;
    int64_t used = 0;
    bool dirty = false;
    double ready = 0;  ///< when it has come
  };
  static constexpr uint64_t kNone = ~uint64_t{0};

  CacheModel(int64_t bytes, int64_t ways, bool soft)
      : size_(ways), ways_(soft ? 2 * ways : ways), sets_(bytes / 64 / ways), lines_(size_t(sets_ * ways_)) {}

  bool has(uint64_t address) const {
    const Line* set = set_of(address);
    return std::any_of(set, set + ways_, [=](const Line& line) { return line.address == address; });
  }
  /// Null: not there. It counts as used.
  Line* find(uint64_t address) {
    Line* set = const_cast<Line*>(set_of(address));
    Line* line = std::find_if(set, set + ways_, [=](const Line& x) { return x.address == address; });
    if (line == set + ways_) return nullptr;
    const int64_t newer = std::count_if(set, set + ways_, [=](const Line& x) { return x.used > line->used; });
    if (newer >= size_ && newer - size_ >= draw()) {
      *line = Line{};
      return nullptr;
    }
    line->used = ++clock_;
    return line;
  }
  /// Puts a line in; `left` is the one that leaves.
  Line* insert(uint64_t address, Line& left) {
    Line* set = const_cast<Line*>(set_of(address));
    Line* line = std::min_element(set, set + ways_, [](const Line& a, const Line& b) { return a.used < b.used; });
    left = *line;
    *line = Line{.address = address, .used = ++clock_};
    return line;
  }

 private:
  const Line* set_of(uint64_t address) const { return &lines_[size_t(int64_t(address % uint64_t(sets_)) * ways_)]; }
  /// 1 ... size_, the same numbers in every run.
  int64_t draw() {
    seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
    return int64_t((seed_ >> 33) % uint64_t(size_)) + 1;
  }

  int64_t size_, ways_, sets_;
  std::vector<Line> lines_;
  int64_t clock_ = 0;
  uint64_t seed_ = 1;
};

/// What a core was told: operations of the unit, and lines by the cache they came from (L1, L2, beyond).
struct CoreCounts {
  int64_t products = 0, tile_loads = 0, tile_stores = 0, vector_stores = 0;
  int64_t tile_lines[3] = {}, vector_lines[3] = {};
};

class CoreModel final : public UnitListener {
 public:
  double cycles() const { return last_; }
  /// Those since the last call.
  CoreCounts take_counts() { return std::exchange(counts_, {}); }
  /// From now on a line that is touched for the first time and is not in the L2 cache comes from memory. (Before, lines
  /// are in the L3 cache, and they are there later.)
  void start_from_memory() { from_memory_ = true, touched_.clear(); }

  void multiply_add(int sum, int a, int b) override {
    ++counts_.products;
    const double start = std::max({issue(1), unit_, ready_[sum], ready_[a], ready_[b]});
    unit_ = start + C::kProduct, ready_[sum] = start + C::kProductLatency;
    read_[a] = read_[b] = start;
    retire(1, ready_[sum]);
  }
  void zero(int tile) override {
    ready_[tile] = issue(1);
    retire(1, ready_[tile]);
  }
  void load(int tile, const void* p, int64_t stride) override { load(tile, p, stride, true); }
  void load_passing(int tile, const void* p, int64_t stride) override { load(tile, p, stride, false); }
  void store(int tile, const void* p, int64_t stride) override {
    ++counts_.tile_stores;
    const double at = issue(kRows);
    unit_ = std::max({unit_, at, ready_[tile]}) + C::kTileStore;
    ready_[tile] = unit_;
    for (int row = 0; row < kRows; ++row) write(address(p) + uint64_t(row * stride), 64, at, ready_[tile]);
    retire(kRows, ready_[tile]);
  }
  void fetch(const void* line) override {
    const double at = issue(1);
    const uint64_t wanted = address(line) / 64;
    if (!l1_.has(wanted) && l2_.find(wanted) == nullptr) {
      double& buffer = next_buffer();
      const double begin = std::max(at, buffer);
      buffer = std::max(fetch_into_l2(wanted, begin)->ready, begin + C::kLatencyL3);
    }
    retire(1, at);
  }
  /// On one port: the unit has the other one. (Also where it rests, for simplicity.)
  void vector_work(int operations) override {
    const double at = issue(operations);
    work_ = std::max(work_, at) + operations;
    retire(operations, work_);
  }
  void vector_load(const void* p, int64_t bytes) {
    const bool vector = bytes >= kVector;
    const double uops = vector ? 1 + C::kVectorOperations : 1, at = issue(uops);
    double ready = read(address(p), bytes, at, counts_.vector_lines);
    if (vector) work_ = std::max(work_, at) + C::kVectorWork, ready = std::max(ready, work_);
    retire(uops, ready);
  }
  void vector_store(const void* p, int64_t bytes) {
    if (bytes >= kVector) ++counts_.vector_stores;
    const double at = issue(1);
    write(address(p), bytes, at, at);
    retire(1, at + 1);
  }

 private:
  using C = CoreConstants;
  static constexpr int kRows = 16, kTileUops = 8, kVector = 16;
  enum Source { kL1, kL2, kBeyond };

  static uint64_t address(const void* p) { return reinterpret_cast<uint64_t>(p); }

  void load(int tile, const void* p, int64_t stride, bool stays) {
    ++counts_.tile_loads;
    const double at = std::max(issue(kTileUops), read_[tile] - C::kTileAhead);
    ready_[tile] = at;
    for (int row = 0; row < kRows; ++row)
      ready_[tile] =
          std::max(ready_[tile], read(address(p) + uint64_t(row * stride), 64, at, counts_.tile_lines, stays));
    retire(kTileUops, ready_[tile]);
  }

  /// When operations are issued: those of the window have to leave first.
  double issue(double uops) {
    front_ += uops / C::kWidth, issued_ += uops;
    return front_ = std::max(front_, left_[size_t(issued_) % C::kWindow]);
  }
  void retire(double uops, double at) {
    last_ = std::max(last_, at);
    for (auto i = int64_t(issued_ - uops); i < int64_t(issued_); ++i) left_[size_t(i) % C::kWindow] = last_;
  }

  /// The fill buffer that is free first, from the time on that it holds.
  double& next_buffer() { return *std::min_element(buffers_.begin(), buffers_.end()); }

  /// When a line from beyond the L2 cache has come there.
  CacheModel::Line* fetch_into_l2(uint64_t line, double at) {
    const bool stream = l2_.has(line - 1) || l1_.has(line - 1);
    const bool far = from_memory_ && touched_.insert(line).second;
    l3_pipe_ = std::max(l3_pipe_, at) + (far ? C::kLineMemory : C::kLineL3);
    double ready = l3_pipe_ + C::kLatencyStream;
    if (!stream) {
      double& miss = misses_[size_t(next_miss_++) % C::kMisses];
      ready = miss = std::max({miss, at, l3_pipe_}) + C::kLatencyL3;
    }
    return put_into_l2(line, ready);
  }
  CacheModel::Line* put_into_l2(uint64_t line, double ready) {
    CacheModel::Line left;
    CacheModel::Line* in = l2_.insert(line, left);
    in->ready = ready;
    if (left.dirty) l3_pipe_ += C::kWriteBack;
    return in;
  }
  /// A line that the L1 cache lacks.
  CacheModel::Line* fetch_into_l1(uint64_t line, double at, Source& source) {
    CacheModel::Line* below = l2_.find(line);
    source = below != nullptr ? kL2 : kBeyond;
    double& buffer = next_buffer();
    at = std::max(at, buffer);
    l2_pipe_ = std::max(l2_pipe_, at) + C::kLineL2;
    if (below == nullptr) below = fetch_into_l2(line, at);
    const double ready = buffer = std::max(below->ready, l2_pipe_ + C::kLatencyL2);
    CacheModel::Line left;
    CacheModel::Line* in = l1_.insert(line, left);
    in->ready = ready;
    if (left.dirty) {
      l2_pipe_ += C::kLineL2 / 2;
      below = l2_.find(left.address);
      if (below == nullptr) below = put_into_l2(left.address, at);
      below->dirty = true;
    }
    return in;
  }
  CacheModel::Line* line_in_l1(uint64_t line, double at, Source& source) {
    CacheModel::Line* in = l1_.find(line);
    source = kL1;
    return in != nullptr ? in : fetch_into_l1(line, at, source);
  }
  /// A line that does not enter the L1 cache: when it can be used.
  double pass_by(uint64_t line, double at, Source& source) {
    const CacheModel::Line* below = l2_.find(line);
    source = below != nullptr ? kL2 : kBeyond;
    double& buffer = next_buffer();
    at = std::max(at, buffer);
    l2_pipe_ = std::max(l2_pipe_, at) + C::kLineL2;
    if (below == nullptr) below = fetch_into_l2(line, at);
    return buffer = std::max(below->ready, l2_pipe_ + C::kLatencyL2);
  }
  /// When all of it can be used.
  double read(uint64_t p, int64_t bytes, double at, int64_t (&lines)[3], bool stays = true) {
    double ready = at;
    for (uint64_t line = p / 64; line <= (p + uint64_t(bytes) - 1) / 64; ++line) {
      ports_ = std::max(ports_, at) + C::kLineL1;
      Source source;
      const CacheModel::Line* in = l1_.find(line);
      source = kL1;
      if (in == nullptr && stays) in = fetch_into_l1(line, ports_, source);
      const double there = in != nullptr ? in->ready : pass_by(line, ports_, source);
      ++lines[source];
      ready = std::max({ready, there, ports_ + C::kLatencyL1});
    }
    return ready;
  }
  /// Stores leave their buffer in order, one line in a cycle, when the line is there.
  void write(uint64_t p, int64_t bytes, double at, double data) {
    for (uint64_t line = p / 64; line <= (p + uint64_t(bytes) - 1) / 64; ++line) {
      double& slot = stores_[size_t(next_store_++) % C::kStoreBuffer];
      front_ = std::max(front_, slot);
      Source source;
      CacheModel::Line* in = line_in_l1(line, std::max(at, slot), source);
      stored_ = std::max({stored_ + 1, in->ready, data, at});
      in->dirty = true, in->ready = stored_ + C::kLatencyL1;
      slot = stored_;
    }
  }

  CacheModel l1_{48 << 10, 12, true}, l2_{2 << 20, 16, false};
  bool from_memory_ = false;
  std::unordered_set<uint64_t> touched_;  ///< since then
  CoreCounts counts_;
  std::vector<double> left_ = std::vector<double>(C::kWindow), misses_ = std::vector<double>(C::kMisses),
                      stores_ = std::vector<double>(C::kStoreBuffer), buffers_ = std::vector<double>(C::kFillBuffers);
  double front_ = 0, issued_ = 0, last_ = 0;
  double unit_ = 0, ports_ = 0, work_ = 0, l2_pipe_ = 0, l3_pipe_ = 0, stored_ = 0;
  int64_t next_miss_ = 0, next_store_ = 0;
  double ready_[8] = {}, read_[8] = {};
};

}  // namespace ditrain::kernels
