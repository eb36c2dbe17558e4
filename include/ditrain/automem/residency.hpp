// Which tensors are in the fast tier, and what is prefetched and evicted next (the paper's AutoMem, section 4.2,
// Algorithm 1).
//
// Problem:      the pool is smaller than the tensors of a step. Copies have to end before a worker needs the tensor,
//               and a slot has to be free before a copy can begin.
// Difficulties: sizes differ, so that the free memory of the pool may be fragmented; any worker may hold a tensor at
//               any time; what was written has to be copied out before its slot is given away.
// Abstractions: Uses (the points of a step and their tensors, known beforehand); StepClock (the next use of each
//               tensor); EvictionPolicy (what may be evicted, what is prefetched); Movable (a tensor, its
//               ResidencyState and Contents). This class has slots, copies and threads that wait.
//
// The same class runs a simulated step, with a queue of copies that only counts time (simulate.hpp), so that the run
// behaves as the plan.
//
// If workers copy (memory::CopyBy), a tensor that they would have to copy in is not prefetched, because it would not
// come any earlier. A worker that waits for tensors copies until the queue has nothing left for workers.
//
// A point begins when all of its tensors are in the fast tier and no copy reads what it writes (Algorithm 1's barrier).
// They stay until it is over, because workers hold tensors one after the other and could otherwise deadlock. Tensors
// that the plan did not expect (sampling, checkpoints) are brought on demand: plans change times, never results. A
// tensor that is held while no point is under way counts as written (as the image of a micro-batch is), unless it is
// held with Access::kRead or inside begin_reading() ... end_reading().
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/automem/eviction.hpp"
#include "ditrain/memory/copy_engine.hpp"
#include "ditrain/memory/slots.hpp"

namespace ditrain::automem {

/// Totals so far.
struct ResidencyTotals {
  double bytes_in = 0, bytes_out = 0;
  /// Time in which at least one cluster waited for the tensors of a point, or copied them. In the rest of a step all
  /// clusters compute, so this bounds the cost of moving tensors. (A sum over clusters could exceed the step, and a
  /// mean would hide a cluster for which all others wait at the end of a pass.)
  double stall_s = 0;
  int64_t late = 0;  ///< tensors that could have been prefetched before their point began, but were not even requested
};

class Residency final : public Mover, public StorageSource {
 public:
  struct Setup {
    Strategy strategy = Strategy::kPlanned;
    std::vector<BackingSlot> backing_slots = {};  ///< one per tensor of the uses
    std::byte* pool = nullptr;  ///< memory of the fast tier, kBlock-aligned; may be null in a simulation
    size_t pool_bytes = 0;
    bool simulated = false;  ///< nothing touches memory
    /// `place` is called when a tensor gets a slot in the pool, before anything touches it; `release` when it loses it.
    std::function<void(int64_t tensor, size_t offset, size_t bytes)> place = {};
    std::function<void(size_t bytes)> release = {};
    memory::Allocator* small = &memory::system_memory();  ///< for tensors below kSmallest; it outlives them
    Times times = {};
    /// Called from time to time by a thread that waits for memory that others hold; it may throw to end the wait.
    std::function<void()> while_waiting = {};
    /// Seconds after which bring() no longer waits for room that only the end of a point would give.
    double patience_s = 60;
  };
  /// The queue must be destroyed before this object, because its copies call back. Tensors must be made in the order of
  /// uses.tensors.
  /// Errors: InputError, with name and bytes, if a point needs more than the pool has
  Residency(Uses uses, Setup setup, memory::CopyQueue& queue);

  std::shared_ptr<Storage> make(const std::string& name, size_t bytes) override;
  /// Errors: RunError of a copy that failed, or if for patience_s no point ended and those under way use all tensors in
  ///         the pool: one of them may wait for this tensor, which it did not announce
  void bring(Storage& storage) override;
  void note_use(Storage& storage) override;

  /// Returns when all tensors of a point are in the fast tier and none that it writes is being copied out. The first
  /// worker of each cluster calls it; the others of the cluster wait for that one. Points come in order; a step may
  /// leave some out.
  /// Errors: RunError of a copy that failed; LogicFault if the step has no such point
  void enter(int point);
  void leave(int point);  ///< call when the last worker has left the point
  /// Mark, between points, a time in which code outside of the step reads tensors and writes none. Nothing is
  /// prefetched until the next point begins.
  void begin_reading();
  void end_reading();

  /// Selects the tensors (of tiers in memory) that are used in place from now on; call it between steps. Their contents
  /// stay. A held tensor that is used in place stays so; for a held tensor that moves the call waits.
  /// Errors: RunError of a copy that failed
  void use_in_place(const std::vector<bool>& in_place);
  void set_times(Times times);  ///< replaces the times of the setup
  /// Shortest time of each point over all steps, without waiting for its tensors [s]; 0 if it never ran.
  std::vector<double> point_seconds() const;
  ResidencyTotals totals() const;

  // For simulations, where nothing waits:
  bool try_enter(int point);               ///< whether all tensors are here; if not, copies are under way
  void pretend_written(Storage& storage);  ///< as if written and moved to its slow tier

 private:
  using Lock = std::unique_lock<std::mutex>;

  // Transitions of a tensor.
  void become(Movable& tensor, ResidencyState state);
  void take_slot(Movable& tensor, size_t offset);
  void free_slot(Movable& tensor);
  bool fetch(Movable& tensor, int64_t distance, Victims victims);
  void make_resident(Movable& tensor);
  bool evict(Movable& tensor, ResidencyState until_copied);
  bool drop(Movable& tensor);
  void move_to_backing(Movable& tensor, Lock& lock);
  void leave_backing(Movable& tensor);
  void copy(Movable& tensor, memory::Direction direction);
  void end_copy(Movable& tensor, int64_t version, const std::string& problem);

  std::optional<double> eviction_cost(const Movable& tensor, int64_t distance, Victims victims) const;
  bool obtain_slot(Movable& tensor, int64_t distance, Victims victims);
  bool evict_for(int64_t time);
  bool compact();
  void prefetch();
  void request(Movable& tensor);
  bool points_use_all() const;
  int64_t begin_point(int point);
  bool fetch_uses(int64_t time, bool prefetches);
  bool fetch_or_evict(int64_t time, bool& stuck);
  void wait(Lock& lock, bool for_release);
  void expect_no_problem() const;
  size_t free_bytes() const { return slots_.bytes() - slots_.used_bytes(); }
  Storage& storage(const Movable& tensor) const { return *storages_[size_t(tensor.id)]; }
  std::byte* address(const Movable& tensor) const { return setup_.pool + tensor.slot; }

  const Uses uses_;
  Setup setup_;
  memory::CopyQueue& queue_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Movable> tensors_;
  std::vector<std::shared_ptr<Storage>> storages_;  // of the tensors that have been made
  memory::SlotMap slots_;
  StepClock clock_;
  EvictionPolicy policy_;
  std::vector<double> since_s_;     // per point under way: when all of its tensors were here
  std::vector<double> shortest_s_;  // per point: its shortest time; 0: it never ran
  int waiting_ = 0;                 // number of clusters that wait
  double waiting_since_s_ = 0;
  bool other_ = true;   // no point has begun yet, or none since code outside of the step read
  bool helps_ = false;  // workers carry out some copies
  int64_t points_left_ = 0;
  int evicting_for_other_ = 0;  // tensors in that state; until they have left, no other copy in begins
  std::string problem_;
  ResidencyTotals totals_;
};

}  // namespace ditrain::automem
