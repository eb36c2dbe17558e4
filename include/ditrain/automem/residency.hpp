// Which tensors are in the fast tier, and what is prefetched and evicted next (the paper's AutoMem, section 4.2,
// Algorithm 1).
//
// Problem:      a pool that is smaller than what a step uses; copies have to end before a worker needs the tensor, and
//               a place has to be free before a copy can begin.
// Difficulties: sizes differ, so that the free memory of the pool may be fragmented; any worker may hold a tensor at
//               any time; what was written has to be copied out before its place is given away.
// Abstractions: Uses (the points of a step and their tensors, known beforehand); StepClock (the next use of each
//               tensor); EvictionPolicy (what may leave, what comes ahead); Movable (a tensor, its Place and Contents).
//               This class has slots, copies and threads that wait.
//
// The same object serves a simulated step, with a queue of copies that only counts time (simulate.hpp), so that the
// plan is what runs.
//
// If workers copy (memory::CopyBy), a tensor that they would have to bring is not prefetched: it would not come any
// earlier. A worker that waits there copies until the queue has nothing left for workers.
//
// A point begins when all of its tensors are there and no copy reads what it writes (Algorithm 1's barrier). They stay
// until it is over, because workers hold tensors one after the other and could otherwise deadlock. Tensors that the
// plan did not expect (sampling, checkpoints) are brought on demand: plans change times, never results. A tensor that
// is held while no point is under way counts as written (the image of a micro-batch is), unless it is held to be read
// (Access::kRead) or a reader says that it only reads.
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

/// What happened so far.
struct ResidencyTotals {
  double bytes_in = 0, bytes_out = 0;
  /// Time in which at least one cluster waited for the tensors of a point, or copied them. All clusters compute in the
  /// rest of a step, so that this bounds what moving tensors costs: a sum over clusters could exceed the step, and a
  /// mean would hide a cluster for which all others wait at the end of a pass.
  double stall_s = 0;
  int64_t late = 0;  ///< tensors that could have come before their point began, and had not even been asked for
};

class Residency final : public Mover, public StorageSource {
 public:
  struct Setup {
    Strategy strategy = Strategy::kPlanned;
    std::vector<Home> homes = {};  ///< one for every tensor of the uses
    std::byte* pool = nullptr;     ///< the fast tier's; kBlock-aligned. May be null in a simulation
    size_t pool_bytes = 0;
    bool simulated = false;  ///< nothing touches memory
    /// Called when a tensor has got a place in the pool, before anything touches it, and when it has lost it.
    std::function<void(int64_t tensor, size_t offset, size_t bytes)> place = {};
    std::function<void(size_t bytes)> release = {};
    memory::Allocator* small = &memory::system_memory();  ///< for tensors below kSmallest; it outlives them
    Times times = {};
    /// Called now and then by a thread that waits for memory that others hold; it may throw to end the wait.
    std::function<void()> while_waiting = {};
  };
  /// The queue calls the object until it ends: it must end first. Tensors are made in the order of uses.tensors.
  /// Errors: InputError if a point needs more than the pool has, with its name and bytes
  Residency(Uses uses, Setup setup, memory::CopyQueue& queue);

  std::shared_ptr<Storage> make(const std::string& name, size_t bytes) override;
  void bring(Storage& storage) override;
  void note_use(Storage& storage) override;

  /// Returns when all tensors of a point are here and none that it writes is being copied out; the first worker of each
  /// cluster calls it, the others of the cluster wait for that one. Points come in their order; a step may leave some
  /// out. Errors: RunError of a copy that failed; LogicFault if the step has no such point: what it writes is not known
  void enter(int point);
  void leave(int point);  ///< the last worker has left it
  /// Between points, code outside of the step begins and ends to read tensors (and writes none). Nothing is prefetched
  /// until the next point begins.
  void begin_reading();
  void end_reading();

  /// Call between steps: selects the tensors of tiers in memory that are used there in place from now on. Their
  /// contents stay. A held tensor that is used in place stays so; for a held tensor that moves the call waits. Errors:
  /// RunError of a copy that failed
  void use_in_place(const std::vector<bool>& in_place);
  void set_times(Times times);  ///< replaces those of the setup
  /// Shortest time of each point over all steps, without waiting for its tensors [s]; 0 if it never ran.
  std::vector<double> point_seconds() const;
  ResidencyTotals totals() const;

  // For simulations, where nothing waits:
  bool try_enter(int point);               ///< whether all is here; else copies are under way
  void pretend_written(Storage& storage);  ///< and moved to its slow tier

 private:
  using Lock = std::unique_lock<std::mutex>;

  // Transitions of a tensor.
  void become(Movable& tensor, Place place);
  void take_slot(Movable& tensor, size_t offset);
  void free_slot(Movable& tensor);
  bool start(Movable& tensor, int64_t distance, Victims victims);
  void settle(Movable& tensor);
  bool evict(Movable& tensor, Place until_copied);
  bool drop(Movable& tensor);
  void move_home(Movable& tensor, Lock& lock);
  void leave_home(Movable& tensor);
  void copy(Movable& tensor, memory::Direction direction);
  void end_copy(Movable& tensor, int64_t version, const std::string& problem);

  std::optional<double> cost_of(const Movable& tensor, int64_t distance, Victims victims) const;
  bool make_room(Movable& tensor, int64_t distance, Victims victims);
  bool clear_for(int64_t time);
  bool compact();
  void pump();
  void ask(Movable& tensor);
  int64_t begin_point(int point);
  bool gather(int64_t time, bool ahead);
  bool gather_or_clear(int64_t time, bool& stuck);
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
  std::vector<double> since_s_;     // when all was there for each point that is under way
  std::vector<double> shortest_s_;  // of each point; 0: it was never there
  int waiting_ = 0;                 // clusters
  double waiting_since_s_ = 0;
  bool other_ = true;    // no point has begun yet, or since something else read
  bool helps_ = false;   // some copies need help
  int making_room_ = 0;  // tensors that are Place::kMakesRoom: until they have left, nothing else begins to come
  std::string problem_;
  ResidencyTotals totals_;
};

}  // namespace ditrain::automem
