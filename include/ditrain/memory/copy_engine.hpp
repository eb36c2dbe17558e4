// Moves bytes between fast memory and slow tiers while the cores compute (the paper's streams 1 and 3): one thread that
// brings in and one that takes out, each with a queue. Copies go in chunks, so that an urgent one waits for a chunk and
// not for a copy. How bytes are copied is the tier's matter (Backing): with non-temporal vectors to memory, through
// io_uring to a disk; a DMA engine would be one more kind.
//
// Where no core is left for these threads, each of their copies stops a worker and with it all that wait for that one.
// Then the other way may be faster: copies between tiers in memory stay in the queue until the workers, who wait for
// them at the border of a node, carry them out themselves, each the next slice (help). A disk is always the threads'.
//
//   CopyEngine engine({});
//   engine.submit({.direction = Direction::kIn, .backing = &disk, .offset = 0, .fast = p, .bytes = n,
//                  .done = [](const std::string& problem) { ... }});
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/memory/tiers.hpp"

namespace ditrain::memory {

enum class Direction { kIn, kOut };
inline constexpr size_t kDirections = 2;

/// Who carries out copies between tiers in memory.
enum class CopyBy { kThreads, kWorkers };
/// Whether the workers do, for this tier.
inline bool workers_copy(CopyBy by, Backing* tier) {
  return by == CopyBy::kWorkers && tier != nullptr && tier->in_place(0) != nullptr;
}

/// A slow tier in memory to pretend on a machine with one kind of memory. Each direction has the whole rate for itself.
struct SimulatedBulk {
  double gb_s = 10;       ///< 10^9 bytes per second
  double latency_us = 0;  ///< of one copy
};

struct Copy {
  Direction direction = Direction::kIn;
  Backing* backing = nullptr;
  size_t tier = 0;            ///< row of kTiers, that of the backing
  size_t offset = 0;          ///< in the backing
  std::byte* fast = nullptr;  ///< where to, or from
  size_t bytes = 0;           ///< offset, fast and bytes are multiples of kBlock
  bool urgent = false;        ///< a worker waits for it
  std::string name = {};      ///< for the timeline
  /// Called by the thread that ends it when it is done: what went wrong, "" if nothing did. May submit.
  std::function<void(const std::string& problem)> done = {};
};

/// What one direction has done so far.
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

/// What carries out copies, or pretends to.
class CopyQueue {
 public:
  virtual ~CopyQueue() = default;
  /// In order, but after those that are urgent if it is not. Any thread. Returns a ticket.
  virtual int64_t submit(Copy copy) = 0;
  virtual void make_urgent(int64_t ticket) = 0;  ///< nothing, if it is done
  /// Whether copies of that tier wait until a thread helps.
  virtual bool needs_help(Backing*) const { return false; }
  /// Carries out the next slice of such copies; false: all of them have been begun. Any number of threads at once.
  virtual bool help() { return false; }
  /// Waits for the extra time that using `bytes` of the bulk tier in place takes on the simulated machine.
  virtual void charge_in_place(size_t bytes) = 0;
};

class CopyEngine final : public CopyQueue {
 public:
  struct Setup {
    std::vector<int> pus = {};  ///< cores of its own; empty: it runs wherever the others leave room
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
  TierTotals totals_of(size_t tier) const;  ///< row of kTiers
  void record_spans(bool on);
  std::vector<CopySpan> take_spans();
  std::vector<std::string> notes() const;  ///< cores that could not be had

 private:
  struct State;
  void stop();
  std::unique_ptr<State> state_;
};

}  // namespace ditrain::memory
