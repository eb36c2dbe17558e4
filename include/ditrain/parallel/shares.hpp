// Work that a group of workers shares out while it is done.
//
// Problem:      cores run at different rates for milliseconds to minutes: another program or virtual machine uses them
//               too, or the processor's power runs out. With fixed parts all wait for the slowest one.
// Difficulties: where cores do not differ, each has to keep its part, which lies in its caches and its memory.
// Abstractions: Shares. Each worker begins with its own part, a third of what is left at a time; when it is done, it
//               takes from the end of what others have left, half of it at a time.
//
//   shares.take(w.worker, my_pieces, 1, [&](int owner, Range pieces) { ... });   // pieces of the part of `owner`
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/parallel/partition.hpp"

namespace ditrain::parallel {

/// The parts of one group of workers, job after job.
/// Memory:  no allocation after construction
class Shares {
 public:
  explicit Shares(int workers) : places_(size_t(workers)) {}

  /// Calls f(owner, pieces) for pieces of the parts of `worker`, which has `mine`, and of every `stride`-th worker from
  /// there on, until they have none left; others may still be at work then. Every worker of the group calls this once
  /// for each job, in the same order of jobs. A part can be taken from once its owner has begun.
  template <class F>
  void take(int worker, int64_t mine, int stride, const F& f) {
    const int workers = int(places_.size());
    if (workers == 1) return mine > 0 ? f(0, Range{0, mine}) : void();
    const Range first = begin(worker, mine);  // nobody else may have it
    const uint64_t round = places_[size_t(worker)].round;
    if (!first.empty()) f(worker, first);
    for (bool found = true; found;) {
      found = false;
      for (int i = 0; i < workers; i += stride) {
        const int owner = (worker + i) % workers;
        for (Range pieces; !(pieces = claim(owner, round, i == 0)).empty(); found = true) f(owner, pieces);
      }
    }
  }

  /// After a job that some worker did not end. Only while no worker is inside.
  void reset() {
    for (Place& place : places_) place.left.store(0, std::memory_order_relaxed), place.round = 0;
  }

 private:
  static constexpr int kBits = 24;  // of a piece's number
  static constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1, kRounds = uint64_t{1} << (64 - 2 * kBits);
  struct alignas(64) Place {
    std::atomic<uint64_t> left{0};  // round, first piece, end
    uint64_t round = 0;             // its owner's alone
  };

  static uint64_t word(uint64_t round, int64_t first, int64_t end) {
    return round << 2 * kBits | uint64_t(first) << kBits | uint64_t(end);
  }
  static int64_t third(int64_t left) { return std::max<int64_t>(std::min<int64_t>(left, 1), left / 3); }
  Range begin(int worker, int64_t mine) {
    DITRAIN_CHECK(mine >= 0 && uint64_t(mine) <= kMask, std::to_string(mine) + " pieces");
    Place& place = places_[size_t(worker)];
    place.round = place.round % (kRounds - 1) + 1;  // never 0
    place.left.store(word(place.round, third(mine), mine), std::memory_order_release);
    return {0, third(mine)};
  }
  Range claim(int owner, uint64_t round, bool own) {
    std::atomic<uint64_t>& left = places_[size_t(owner)].left;
    for (uint64_t seen = left.load(std::memory_order_acquire);;) {
      const int64_t first = int64_t(seen >> kBits & kMask), end = int64_t(seen & kMask);
      if (seen >> 2 * kBits != round || first == end) return {};
      const int64_t count = own ? third(end - first) : (end - first + 1) / 2;
      const Range taken = own ? Range{first, first + count} : Range{end - count, end};
      const uint64_t rest = own ? word(round, taken.end, end) : word(round, first, taken.begin);
      if (left.compare_exchange_weak(seen, rest, std::memory_order_acq_rel)) return taken;
    }
  }

  std::vector<Place> places_;
};

}  // namespace ditrain::parallel
