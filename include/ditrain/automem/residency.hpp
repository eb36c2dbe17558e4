// Which tensors are in the fast tier, and what is prefetched and evicted next (the paper's AutoMem, section 4.2,
// Algorithm 1).
//
// Problem:      a pool that is smaller than what a step uses; copies have to end before a worker needs the tensor, and
//               a place has to be free before a copy can begin.
// Difficulties: sizes differ, so that the free memory of the pool may be fragmented; any worker may hold a tensor at
//               any time; what was written has to be copied out before its place is given away.
// Abstractions: Uses (the points of a step and their tensors, known beforehand); a clock, which is the earliest point
//               that is not over; tensors that are away, coming or here.
//
// A step uses its tensors in the same order every time, so that the next use of each is known. To make room for the
// tensor that is needed first, tensors with a later next use are evicted (Belady's rule): first those without further
// use (activations after backward), then those that are needed late and can be dropped without a copy. Evictions that
// need a copy begin only when the link would otherwise be too late for some later point: until then memory may become
// free by itself.
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
#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ditrain/automem/uses.hpp"
#include "ditrain/memory/copy_engine.hpp"
#include "ditrain/memory/slots.hpp"

namespace ditrain::automem {

/// kPaper is Algorithm 1 as written: while a module computes, the tensors of the next one are prefetched; when it is
/// over, its own are evicted, changed or not. kPlanned prefetches as far ahead as memory allows, and evicts only what
/// has to leave, clean tensors without a copy.
enum class Strategy { kPaper, kPlanned };

/// Where a tensor lives. A tensor that is used in place stays in its slow tier for ever.
struct Home {
  memory::Backing* backing = nullptr;
  size_t offset = 0;
  bool in_place = false;
  size_t tier = 0;  ///< row of memory::kTiers, that of the backing
};

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
    /// Expected seconds of each point and rates of the tiers decide when copies have to begin. Empty: they begin at
    /// once.
    std::vector<double> point_s = {};
    memory::PerTier<memory::TierRates> rates = {};
    double margin = 1.5;  ///< copies are taken to last this much longer than the rates say
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
  /// Replaces the times of the setup.
  void set_times(std::vector<double> point_s, const memory::PerTier<memory::TierRates>& rates, double margin);
  /// Shortest time of each point over all steps, without waiting for its tensors [s]; 0 if it never ran.
  std::vector<double> point_seconds() const;
  ResidencyTotals totals() const;

  // For simulations, where nothing waits:
  bool try_enter(int point);               ///< whether all is here; else copies are under way
  void pretend_written(Storage& storage);  ///< and moved to its slow tier

 private:
  enum class State { kAway, kComing, kHere };
  struct Item {
    std::string name;
    size_t bytes = 0;  // whole blocks
    Written written = Written::kInForward;
    Home home;
    bool needs_help = false;       // its copies, see CopyQueue
    std::vector<int> points = {};  // of the step, that use it
    std::shared_ptr<Storage> storage = {};
    State state = State::kAway;
    size_t slot = 0;
    bool dirty = false;            // the slow tier has other bytes, or none
    bool has_contents = false;     // written at least once
    int64_t fresh_at = -1;         // the use whose contents are in place, or are being written there
    bool leaving = false;          // is being copied out
    bool drop_when_clean = false;  // its place is free as soon as it is
    bool makes_room = false;       // and another one waits for that
    int wanted = 0;                // threads that wait for it: it does not leave before they have held it
    int64_t version = 0;           // counts writes
    int64_t ticket = -1;           // of its last copy
  };
  using Lock = std::unique_lock<std::mutex>;

  bool comes_ahead(const Item& item) const { return !item.home.in_place && !item.needs_help; }
  void wait(Lock& lock, bool for_release);
  int64_t next_use(const Item& item) const;  // points from now; at least 0
  bool is_fresh(const Item& item, int64_t at) const;
  bool is_dead(const Item& item) const;
  bool is_written_by(const Item& item, int64_t time) const;
  bool is_being_written(const Item& item) const;
  int position(int64_t time) const { return int(time % int64_t(uses_.points.size())); }
  // What may be taken away for a tensor whose next use is `distance` points from now.
  enum class Victims { kDead, kLater, kAny };
  bool make_room(Item& item, int64_t distance, Victims victims);
  bool start(Item& item, int64_t distance, Victims victims);
  void ask(Item& item);
  int64_t begin_point(int point);
  void begin_waiting();
  void end_waiting();
  bool copies_are_under_way() const;
  bool gather(int64_t time);
  bool gather_or_clear(int64_t time, bool& stuck);
  bool compact();
  bool clear_for(int64_t time);
  std::optional<double> cost_of(const Item& item, int64_t distance, Victims victims) const;
  bool is_used_now(const Item& item) const;
  void take_slot(Item& item, size_t offset);
  void free_slot(const Item& item);
  void settle(Item& item);  // in its slot: contents are there
  void copy_out(Item& item);
  bool drop(Item& item);
  void move_home(Item& item, Lock& lock);
  void leave_home(Item& item);
  bool has_to_begin() const;
  void pump();
  void pump_paper();
  void offload(int point);
  void came_in(int64_t id, const std::string& problem);
  void went_out(int64_t id, int64_t version, const std::string& problem);
  void expect_no_problem() const;
  int64_t id_of(const Item& item) const { return &item - items_.data(); }
  std::byte* address(const Item& item) const { return setup_.pool + item.slot; }

  const Uses uses_;
  Setup setup_;
  memory::CopyQueue& queue_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Item> items_;
  size_t made_ = 0;
  memory::SlotMap slots_;
  int64_t now_ = 0;                   // the earliest point that is not over, counted over all steps
  int64_t last_entered_ = -1;         // the same count
  std::map<int64_t, double> active_;  // entered and not left, and since when [s] all was there
  std::vector<double> shortest_s_;    // of each point; 0: it was never there
  int waiting_ = 0;                   // clusters
  double waiting_since_s_ = 0;
  bool other_ = true;    // no point has begun yet, or since something else read
  bool helps_ = false;   // some copies need help
  int making_room_ = 0;  // copies out that a tensor waits for
  std::string problem_;
  ResidencyTotals totals_;
};

}  // namespace ditrain::automem
