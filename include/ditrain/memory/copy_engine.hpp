// Moves bytes between fast memory and slow tiers while the cores compute (the paper's streams 1 and 3): one thread
// copies in and one copies out, each with a queue. Copies go in chunks, so that an urgent copy waits for a chunk only.
// The tier (Backing) does the copying: with non-temporal stores to memory, through io_uring to a disk.
//
// If no core is free for these threads, each of their copies stops a worker, and with it all workers that wait for that
// one. Then it may be faster that the workers copy: copies between tiers in memory stay in the queue until workers,
// which wait for them at the border of a node of the tape, carry them out slice by slice (help). Disk copies are always
// done by the threads.
//
//   CopyEngine engine({});
//   engine.submit({.direction = Direction::kIn, .backing = &disk, .offset = 0, .fast = p, .bytes = n,
//                  .done = [](const std::string& problem) { ... }});
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/memory/copy_order.hpp"

namespace ditrain::memory {

/// A simulated slow tier, for machines with one kind of memory. Each direction has the whole rate for itself.
struct SimulatedBulk {
  double gb_s = 10;       ///< 10^9 bytes per second
  double latency_us = 0;  ///< latency per copy
};

/// Totals of one direction so far.
struct StreamTotals {
  double bytes = 0, busy_s = 0;
  int64_t copies = 0;
};
using TierTotals = std::array<StreamTotals, kDirections>;  ///< by direction

/// A copy on the timeline, now_s() times.
struct CopySpan {
  std::string name;
  Direction direction = Direction::kIn;
  double begin_s = 0, end_s = 0;
};

/// The queue that carries out copies, or simulates them.
class CopyQueue {
 public:
  virtual ~CopyQueue() = default;
  /// Queues a copy (CopyOrder). Any thread may call it. Returns a ticket.
  virtual int64_t submit(Copy copy) = 0;
  virtual void make_urgent(int64_t ticket) = 0;  ///< no effect if the copy is done
  /// Whether copies of that tier wait until a thread calls help().
  virtual bool needs_help(Backing*) const { return false; }
  /// Carries out the next slice of such copies; false if none is left to begin. Thread-safe.
  virtual bool help() { return false; }
  /// Waits for the extra time that using `bytes` of the bulk tier in place takes on the simulated machine.
  virtual void charge_in_place(size_t bytes) = 0;
};

class CopyEngine final : public CopyQueue {
 public:
  struct Setup {
    std::vector<int> pus = {};  ///< cores reserved for its threads; empty: they share all cores
    std::optional<SimulatedBulk> simulate = {};
    CopyBy by = CopyBy::kThreads;
  };
  /// Errors: RunError if a thread cannot be started
  explicit CopyEngine(const Setup& setup);
  ~CopyEngine() override;  ///< copies that have not begun are dropped without a call of `done`
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  int64_t submit(Copy copy) override;
  void make_urgent(int64_t ticket) override;
  bool needs_help(Backing* tier) const override;
  bool help() override;
  void charge_in_place(size_t bytes) override;

  TierTotals totals() const;
  TierTotals totals_of(size_t tier) const;  ///< tier: row of kTiers
  void record_spans(bool on);
  std::vector<CopySpan> take_spans();
  std::vector<std::string> notes() const;  ///< cores to which its threads could not be bound

 private:
  struct State;
  void stop();
  std::unique_ptr<State> state_;
};

}  // namespace ditrain::memory
