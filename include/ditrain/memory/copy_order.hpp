// The queue of requested copies, and which of them is next: one order for the engine that carries them out and for
// simulations. Copies for threads wait in one row per direction; copies for workers wait in one row of their own. In a
// row urgent copies come first, then the oldest.
#pragma once
#include <array>
#include <functional>
#include <list>
#include <string>
#include <utility>

#include "ditrain/memory/tiers.hpp"

namespace ditrain::memory {

enum class Direction { kIn, kOut };
inline constexpr size_t kDirections = 2;

/// Which threads carry out copies between tiers in memory.
enum class CopyBy { kThreads, kWorkers };
/// Whether the workers carry out the copies of this tier.
inline bool workers_copy(CopyBy by, Backing* tier) {
  return by == CopyBy::kWorkers && tier != nullptr && tier->in_place(0) != nullptr;
}

struct Copy {
  Direction direction = Direction::kIn;
  Backing* backing = nullptr;
  size_t tier = 0;            ///< the backing's row of kTiers
  size_t offset = 0;          ///< place in the backing
  std::byte* fast = nullptr;  ///< destination, or source
  size_t bytes = 0;           ///< offset, fast and bytes are multiples of kBlock
  bool urgent = false;        ///< a worker waits for it
  std::string name = {};      ///< name on the timeline
  /// The thread that finishes the copy calls it with the problem, or "" without one. It may submit copies.
  std::function<void(const std::string& problem)> done = {};
};

/// A copy that was requested and is not finished.
struct CopyJob {
  Copy copy;
  int64_t ticket = 0;
  double submitted_s = 0;
  size_t begun = 0;  ///< bytes whose copying has begun
  int movers = 0;    ///< threads that are copying a part of it
  double begin_s = 0;
  std::string problem = {};
  bool has_more() const { return begun < copy.bytes && problem.empty(); }
};

class CopyOrder {
 public:
  static constexpr size_t kWorkersRow = kDirections, kRows = kDirections + 1;

  explicit CopyOrder(CopyBy by) : by_(by) {}
  size_t row_of(const Copy& copy) const {
    return workers_copy(by_, copy.backing) ? kWorkersRow : size_t(copy.direction);
  }
  /// Returns a ticket.
  int64_t add(Copy copy, double now_s) {
    const size_t row = row_of(copy);
    rows_[row].push_back({std::move(copy), next_ticket_, now_s});
    return next_ticket_++;
  }
  /// Makes a copy urgent; no effect if it is not in a row.
  void make_urgent(int64_t ticket) {
    for (auto& row : rows_)
      for (CopyJob& job : row)
        if (job.ticket == ticket) job.copy.urgent = true;
  }
  /// The copy of a row to begin or to continue; null if there is none. It stays in the row until take().
  CopyJob* next(size_t row) {
    CopyJob* first = nullptr;
    for (CopyJob& job : rows_[row]) {
      if (!job.has_more()) continue;
      if (job.copy.urgent) return &job;
      if (first == nullptr) first = &job;
    }
    return first;
  }
  CopyJob take(CopyJob& job) {
    CopyJob taken = std::move(job);
    rows_[row_of(taken.copy)].remove_if([&](const CopyJob& other) { return &other == &job; });
    return taken;
  }

 private:
  const CopyBy by_;
  std::array<std::list<CopyJob>, kRows> rows_;  // by ticket
  int64_t next_ticket_ = 0;
};

}  // namespace ditrain::memory
