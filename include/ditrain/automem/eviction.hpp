// The eviction policy: which tensors may leave the fast tier for which other tensor and at what cost, which tensors are
// prefetched, and whether copies have to begin for them. The policy only decides: it moves nothing, waits for nothing
// and touches no memory.
//
// A step uses its tensors in the same order every time. To free memory for the tensor that is needed first, tensors
// with a later next use are evicted (Belady's rule): first those without further use (activations after backward), then
// those that are needed late and can be dropped without a copy. Evictions that need a copy begin only when the link
// would otherwise be too late for some later point, because until then memory may become free by itself.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ditrain/automem/uses.hpp"
#include "ditrain/memory/tiers.hpp"

namespace ditrain::automem {

/// kPaper is Algorithm 1 of the paper as written: while a module computes, the tensors of the next one are prefetched;
/// when it is over, its own tensors are evicted, changed or not. kPlanned prefetches as far ahead as memory allows, and
/// evicts only as much as is needed, clean tensors without a copy.
enum class Strategy { kPaper, kPlanned };

/// The slot of a tensor in a slow tier. A tensor that is used in place never leaves it.
struct BackingSlot {
  memory::Backing* backing = nullptr;
  size_t offset = 0;
  bool in_place = false;
  size_t tier = 0;  ///< the backing's row of memory::kTiers
};

/// Where a tensor is. It goes through kNotResident, kCopyingIn and kResident and, if the slow tier has other bytes, one
/// of the next three. When its copy out is over, it is kNotResident or, if it was used or written meanwhile, kResident.
enum class ResidencyState {
  kNotResident,       ///< in its slow tier only, or nowhere if it has no contents
  kCopyingIn,         ///< has a slot and is being copied in
  kResident,          ///< in its slot
  kCopyingOut,        ///< in its slot, is being copied out and stays
  kEvicting,          ///< in its slot, which is freed as soon as it has been copied out
  kEvictingForOther,  ///< as kEvicting, and another tensor waits for its slot
  kInPlace,           ///< used in its slow tier
};

/// What is known of the contents of a tensor.
struct Contents {
  bool exist = false;           ///< written at least once
  bool dirty = false;           ///< the slow tier has other bytes, or none
  int64_t overwritten_at = -1;  ///< time of the use whose contents are here, or are being written
  int64_t version = 0;          ///< counts writes
  void note_write() { exist = dirty = true, ++version; }
};

/// A tensor that can move.
struct Movable {
  int64_t id = 0;
  std::string name;
  size_t bytes = 0;  ///< whole blocks
  Written written = Written::kInForward;
  BackingSlot backing_slot;
  bool needs_help = false;  ///< workers carry out its copies, see CopyQueue::needs_help
  ResidencyState state = ResidencyState::kNotResident;
  size_t slot = 0;
  Contents contents = {};
  int waiting_threads = 0;  ///< threads that wait for it; it does not leave before they have held it
  int64_t ticket = -1;      ///< ticket of its last copy

  bool is_being_copied_out() const {
    return state >= ResidencyState::kCopyingOut && state <= ResidencyState::kEvictingForOther;
  }
  bool is_being_copied() const { return state == ResidencyState::kCopyingIn || is_being_copied_out(); }
  bool is_resident() const { return state >= ResidencyState::kResident; }
};

/// Expected seconds of each point and rates of the tiers. Without points all copies begin at once.
struct Times {
  std::vector<double> point_s = {};
  memory::PerTier<memory::TierRates> rates = {};
  double margin = 1.5;  ///< copies are expected to take this many times as long as the rates say
};

/// Which tensors may be evicted for another: only those without further use, also those that are used later than it, or
/// any.
enum class Victims { kDead, kLater, kAny };

class EvictionPolicy {
 public:
  /// Clock and tensors must outlive the policy.
  EvictionPolicy(Strategy strategy, const StepClock& clock, const std::vector<Movable>& tensors, Times times)
      : strategy_(strategy), clock_(clock), tensors_(tensors) {
    set_times(std::move(times));
  }
  void set_times(Times times);

  /// Whether the use at that time overwrites all contents of the tensor.
  bool is_overwritten(const Movable& tensor, int64_t time) const;
  /// Whether the contents have no further use before they are written again.
  bool is_dead(const Movable& tensor) const;
  /// Whether contents would be lost if the tensor left without a copy.
  bool needs_copy(const Movable& tensor) const { return tensor.contents.dirty && !is_dead(tensor); }
  /// The cost of taking away the tensor's slot for another whose next use is `distance` points from now; none: it
  /// cannot be taken.
  std::optional<double> eviction_cost(const Movable& tensor, int64_t distance, Victims victims) const;
  /// Whether Algorithm 1 evicts the tensor after a point: it does unless the points under way or next use it.
  bool evicts_after_use(const Movable& tensor) const;

  int64_t prefetch_horizon() const;  ///< how many points from now tensors are prefetched
  /// Whether the tensor is not resident, is next used `distance` points from now, and can be copied without workers.
  bool wants_prefetch(const Movable& tensor, int64_t distance) const;
  /// The least distance above `after` at which a tensor wants to be prefetched; prefetch_horizon() if none does.
  int64_t next_prefetch(int64_t after) const;
  /// Which tensors may be evicted now for prefetches. Copies have to begin if, for some later point, copying in all
  /// that is needed by then would take as long as the time until that point.
  Victims prefetch_victims(size_t free_bytes) const;

 private:
  double seconds_until(int64_t distance) const;  ///< expected, until the point in so many points

  const Strategy strategy_;
  const StepClock& clock_;
  const std::vector<Movable>& tensors_;
  Times times_;
  std::vector<double> before_s_;  // per point of a step, and for its end: seconds of those before it
};

}  // namespace ditrain::automem
