#include "ditrain/automem/residency.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"

namespace ditrain::automem {

using memory::whole_blocks;

Residency::Residency(Uses uses, Setup setup, memory::CopyQueue& queue)
    : uses_(std::move(uses)),
      setup_(std::move(setup)),
      queue_(queue),
      slots_(setup_.pool_bytes),
      clock_(uses_),
      policy_(setup_.strategy, clock_, tensors_, std::move(setup_.times)),
      since_s_(uses_.points.size()),
      shortest_s_(uses_.points.size()) {
  DITRAIN_CHECK(setup_.backing_slots.size() == uses_.tensors.size(), "a backing slot for every tensor");
  for (const MovableTensor& tensor : uses_.tensors) {
    const BackingSlot& slot = setup_.backing_slots[tensors_.size()];
    tensors_.push_back({.id = int64_t(tensors_.size()),
                        .name = tensor.name,
                        .bytes = whole_blocks(tensor.bytes),
                        .written = tensor.written,
                        .backing_slot = slot,
                        .needs_help = queue_.needs_help(slot.backing),
                        .state = slot.in_place ? ResidencyState::kInPlace : ResidencyState::kNotResident});
    helps_ = helps_ || tensors_.back().needs_help;
  }
  for (const Point& point : uses_.points) {
    size_t needed = 0;
    for (const int id : point.uses)
      if (const Movable& tensor = tensors_[size_t(id)]; tensor.state != ResidencyState::kInPlace)
        needed += tensor.bytes;
    if (needed > setup_.pool_bytes)
      throw InputError(
          {.where = "memory",
           .what = std::string(phase_name(point.phase)) + " of " + point.name + " does not fit the fast tier",
           .got = format_bytes(needed) + " at once",
           .expected = "at most " + format_bytes(setup_.pool_bytes) + " beside what never moves",
           .hint = "a larger memory.fast_gib, or a smaller train.micro_batch"});
  }
  set_watches(true);  // until the first point begins
}

std::shared_ptr<Storage> Residency::make(const std::string& name, size_t bytes) {
  if (bytes < kSmallest) return PlainSource(*setup_.small).make(name, bytes);
  const size_t id = storages_.size();
  DITRAIN_CHECK(id < tensors_.size() && tensors_[id].name == name && tensors_[id].bytes == whole_blocks(bytes),
                "tensor " + name + " is not the next one that was recorded");
  storages_.push_back(std::make_shared<Storage>(*this, bytes, int64_t(id)));
  const Movable& tensor = tensors_[id];
  const BackingSlot& slot = tensor.backing_slot;
  if (tensor.state == ResidencyState::kInPlace)
    storage(tensor).place(slot.backing->in_place(slot.offset));  // zeroed, and held for ever
  return storages_.back();
}

void Residency::become(Movable& tensor, ResidencyState state) {
  evicting_for_other_ +=
      int(state == ResidencyState::kEvictingForOther) - int(tensor.state == ResidencyState::kEvictingForOther);
  tensor.state = state;
}

void Residency::take_slot(Movable& tensor, size_t offset) {
  tensor.slot = offset;
  slots_.take(offset, tensor.bytes, tensor.id);
  if (setup_.place) setup_.place(tensor.id, offset, tensor.bytes);
}

void Residency::free_slot(Movable& tensor) {
  slots_.free(tensor.slot);
  if (setup_.release) setup_.release(tensor.bytes);
  become(tensor, ResidencyState::kNotResident);
}

// The tensor has its contents in its slot now.
void Residency::make_resident(Movable& tensor) {
  become(tensor, ResidencyState::kResident);
  storage(tensor).place(address(tensor));
  storage(tensor).release();
  changed_.notify_all();
}

// Gives the tensor a slot and, if its contents are needed, begins to copy them in. Returns false if no slot is free.
bool Residency::fetch(Movable& tensor, int64_t distance, Victims victims) {
  if (!obtain_slot(tensor, distance, victims)) return false;
  const int64_t next = clock_.now() + clock_.next_use(tensor.id);
  if (!policy_.is_overwritten(tensor, next)) {
    become(tensor, ResidencyState::kCopyingIn);
    copy(tensor, memory::Direction::kIn);
    return true;
  }
  Contents& contents = tensor.contents;
  contents.overwritten_at = next;
  if (!contents.exist && !setup_.simulated) std::memset(address(tensor), 0, tensor.bytes);
  contents.dirty = !contents.exist && tensor.written == Written::kInUpdates;
  contents.exist = true;
  make_resident(tensor);
  return true;
}

// Frees the slot: at once if no contents would be lost, else a copy out begins. Returns whether anything changed.
bool Residency::evict(Movable& tensor, ResidencyState until_copied) {
  if (!policy_.needs_copy(tensor)) return drop(tensor);
  become(tensor, until_copied);
  copy(tensor, memory::Direction::kOut);
  return true;
}

// Frees the slot at once, unless some thread holds or waits for the tensor.
bool Residency::drop(Movable& tensor) {
  if (tensor.waiting_threads > 0 || !storage(tensor).try_leave()) return false;
  free_slot(tensor);
#ifdef DITRAIN_POISON
  if (!setup_.simulated) std::memset(address(tensor), 0xff, tensor.bytes);  // NaN: who still reads it shows
#endif
  tensor.contents.dirty = false;  // it is clean, or its contents are worth nothing
  return true;
}

void Residency::copy(Movable& tensor, memory::Direction direction) {
  (direction == memory::Direction::kIn ? totals_.bytes_in : totals_.bytes_out) += double(tensor.bytes);
  tensor.ticket = queue_.submit({.direction = direction,
                                 .backing = tensor.backing_slot.backing,
                                 .tier = tensor.backing_slot.tier,
                                 .offset = tensor.backing_slot.offset,
                                 .fast = address(tensor),
                                 .bytes = tensor.bytes,
                                 .name = tensor.name,
                                 .done = [this, &tensor, version = tensor.contents.version](
                                             const std::string& problem) { end_copy(tensor, version, problem); }});
}

void Residency::end_copy(Movable& tensor, int64_t version, const std::string& problem) {
  const std::lock_guard lock(mutex_);
  if (problem_.empty()) problem_ = problem;
  if (const ResidencyState state = tensor.state; state == ResidencyState::kCopyingIn) {
    problem.empty() ? make_resident(tensor) : free_slot(tensor);
  } else {
    become(tensor, ResidencyState::kResident);
    if (problem.empty() && version == tensor.contents.version && !clock_.is_written_now(tensor.id)) {
      tensor.contents.dirty = false;
      if (state != ResidencyState::kCopyingOut && !clock_.is_used_now(tensor.id))
        drop(tensor);  // a point may have begun meanwhile
    }
  }
  prefetch();
  changed_.notify_all();
}

void Residency::expect_no_problem() const {
  if (!problem_.empty()) throw RunError({.where = "memory", .what = problem_});
}

std::optional<double> Residency::eviction_cost(const Movable& tensor, int64_t distance, Victims victims) const {
  if (tensor.state != ResidencyState::kResident || storage(tensor).is_held()) return std::nullopt;
  return policy_.eviction_cost(tensor, distance, victims);
}

// Returns whether the tensor has a slot now. If others have to be copied out of it first, these copies begin.
bool Residency::obtain_slot(Movable& tensor, int64_t distance, Victims victims) {
  const auto cost = [&](int64_t owner) { return eviction_cost(tensors_[size_t(owner)], distance, victims); };
  const auto window = slots_.find(tensor.bytes, cost);
  if (!window) return false;
  for (const int64_t owner : window->owners)
    if (Movable& o = tensors_[size_t(owner)]; policy_.needs_copy(o)) evict(o, ResidencyState::kEvictingForOther);
  if (evicting_for_other_ > 0) return false;
  for (const int64_t owner : window->owners)
    if (!drop(tensors_[size_t(owner)])) return false;
  take_slot(tensor, window->offset);
  return true;
}

// Evicts the cheapest tensors, wherever they lie, until the free memory suffices for what a point still misses, if not
// in one piece. Returns whether any eviction took place or began.
bool Residency::evict_for(int64_t time) {
  size_t missing = 0;
  for (const int id : clock_.at(time).uses)
    if (const Movable& tensor = tensors_[size_t(id)]; tensor.state == ResidencyState::kNotResident)
      missing += tensor.bytes;
  std::vector<std::pair<double, Movable*>> victims;
  for (Movable& tensor : tensors_)
    if (const auto cost = eviction_cost(tensor, 0, Victims::kLater)) victims.emplace_back(*cost, &tensor);
  std::sort(victims.begin(), victims.end());
  size_t room = free_bytes();
  bool changed = false;
  for (const auto& [cost, tensor] : victims) {
    if (room >= missing) break;
    room += tensor->bytes;
    changed = evict(*tensor, ResidencyState::kEvicting) || changed;
  }
  return changed;
}

// Moves what nothing holds to the bottom of the pool, so that the free memory above is in one piece. Returns whether
// anything moved.
bool Residency::compact() {
  bool moved = false;
  for (const int64_t owner : slots_.owners()) {
    Movable& tensor = tensors_[size_t(owner)];
    const size_t to = slots_.lowest(tensor.slot);
    if (to == tensor.slot || tensor.state != ResidencyState::kResident || tensor.waiting_threads > 0) continue;
    if (!storage(tensor).try_leave()) continue;
    std::byte* const from = address(tensor);
    free_slot(tensor);
    take_slot(tensor, to);
    if (!setup_.simulated) std::memmove(address(tensor), from, tensor.bytes);
#ifdef DITRAIN_POISON
    if (!setup_.simulated) {
      std::byte* const left = std::max(from, address(tensor) + tensor.bytes);
      if (left < from + tensor.bytes) std::memset(left, 0xff, size_t(from + tensor.bytes - left));
    }
#endif
    make_resident(tensor);
    moved = true;
  }
  return moved;
}

// Begins as many prefetches as possible now, in the order of their next uses.
void Residency::prefetch() {
  if (other_ || !problem_.empty()) return;
  const Victims victims = policy_.prefetch_victims(free_bytes());
  for (int64_t d = -1; (d = policy_.next_prefetch(d)) < policy_.prefetch_horizon();)
    for (const int id : clock_.at(clock_.now() + d).uses) {
      Movable& tensor = tensors_[size_t(id)];
      if (tensor.state != ResidencyState::kNotResident || !policy_.wants_prefetch(tensor, d)) continue;
      if (evicting_for_other_ > 0 || !fetch(tensor, d, victims)) return;
    }
}

// Returns the time of a point that begins, or has begun for another cluster.
int64_t Residency::begin_point(int point) {
  if (const auto time = clock_.time_of(point)) return *time;
  const int64_t time = clock_.begin(point);
  other_ = false;
  set_watches(false);
  since_s_[size_t(point)] = now_s();
  for (const int id : clock_.at(time).uses)
    if (clock_.is_written_at(id, time))
      ++tensors_[size_t(id)].contents.version;  // a copy out that is under way does not make it clean
  return time;
}

// Returns whether all that the point uses is resident, and nothing that it writes is being copied out. If not, copies
// of what is missing have begun, except where tensors that are held or being copied take the memory.
bool Residency::fetch_uses(int64_t time, bool prefetches) {
  expect_no_problem();
  if (prefetches) prefetch();
  bool all_here = true;
  for (const int id : clock_.at(time).uses) {
    Movable& tensor = tensors_[size_t(id)];
    if (tensor.state == ResidencyState::kNotResident && evicting_for_other_ == 0)
      fetch(tensor, time - clock_.now(), Victims::kLater);
    const bool is_read_by_copy = tensor.is_being_copied_out() && clock_.is_written_at(id, time);
    if (tensor.state == ResidencyState::kCopyingIn || is_read_by_copy) queue_.make_urgent(tensor.ticket);
    all_here = all_here && tensor.is_resident() && !is_read_by_copy;
  }
  return all_here;
}

// The same. If something is missing and no copy is under way, tensors are evicted or, if none may be, the pool is
// compacted; prefetches must not take the memory that this frees. `stuck`: neither is possible, and only the release of
// a tensor helps.
bool Residency::fetch_or_evict(int64_t time, bool& stuck) {
  stuck = false;
  for (bool prefetches = true; !fetch_uses(time, prefetches); prefetches = false) {
    if (std::any_of(tensors_.begin(), tensors_.end(), [](const Movable& t) { return t.is_being_copied(); }))
      return false;
    stuck = !evict_for(time) && !compact();
    if (stuck) return false;
  }
  return true;
}

bool Residency::try_enter(int point) {
  const std::lock_guard lock(mutex_);
  const int64_t t = begin_point(point);
  bool stuck = false;
  return fetch_or_evict(t, stuck);
}

// Waits until something has changed. A worker that releases a tensor does not notify, nor does one that takes the last
// slice of a copy while another one looks for work.
void Residency::wait(Lock& lock, bool for_release) {
  if (for_release && setup_.while_waiting) setup_.while_waiting();
  if (helps_) {
    lock.unlock();
    const bool helped = queue_.help();
    lock.lock();
    if (helped) return;
  }
  helps_ || for_release ? void(changed_.wait_for(lock, std::chrono::microseconds(100))) : changed_.wait(lock);
}

void Residency::enter(int point) {
  Lock lock(mutex_);
  const bool is_first = !clock_.time_of(point);  // of the clusters
  const int64_t time = begin_point(point);
  const std::vector<int>& uses = clock_.at(time).uses;
  if (is_first)
    totals_.late += std::count_if(uses.begin(), uses.end(), [&](int id) {
      return !tensors_[size_t(id)].needs_help && tensors_[size_t(id)].state == ResidencyState::kNotResident;
    });
  if (waiting_++ == 0) waiting_since_s_ = now_s();
  for (bool stuck = false; !fetch_or_evict(time, stuck);) wait(lock, stuck);
  if (helps_) {  // what others wait for
    lock.unlock();
    while (queue_.help()) continue;
    lock.lock();
  }
  if (--waiting_ == 0) totals_.stall_s += now_s() - waiting_since_s_;
  if (!is_first) return;
  since_s_[size_t(point)] = now_s();
  size_t in_place = 0;
  for (const int id : uses)
    if (const Movable& tensor = tensors_[size_t(id)]; tensor.state == ResidencyState::kInPlace)
      in_place += tensor.bytes;
  if (in_place == 0) return;
  lock.unlock();
  queue_.charge_in_place(in_place);
  lock.lock();
  since_s_[size_t(point)] = now_s();
}

void Residency::leave(int point) {
  const std::lock_guard lock(mutex_);
  const auto time = clock_.time_of(point);
  if (!time) return;
  const double seconds = now_s() - since_s_[size_t(point)];
  double& shortest_s = shortest_s_[size_t(point)];
  shortest_s = shortest_s == 0 ? seconds : std::min(shortest_s, seconds);
  clock_.end(*time);
  ++points_left_;
  set_watches(clock_.is_between_points());
  const std::vector<int>& uses = clock_.at(*time).uses;
  for (const int id : uses)
    if (clock_.is_written_at(id, *time)) tensors_[size_t(id)].contents.note_write();
  for (const int id : uses)
    if (Movable& tensor = tensors_[size_t(id)]; policy_.evicts_after_use(tensor)) {
      tensor.contents.dirty = true;  // it is copied out even if it has not changed
      evict(tensor, ResidencyState::kEvicting);
    }
  prefetch();
  changed_.notify_all();
}

void Residency::begin_reading() {
  const std::lock_guard lock(mutex_);
  DITRAIN_CHECK(clock_.is_between_points(), "something else than a step, within one of its points");
  other_ = true;
  set_watches(false);
}

void Residency::end_reading() { set_watches(true); }

void Residency::use_in_place(const std::vector<bool>& in_place) {
  Lock lock(mutex_);
  DITRAIN_CHECK(clock_.is_between_points() && in_place.size() == tensors_.size(),
                "a choice for every tensor, between steps");
  for (Movable& tensor : tensors_) {
    const bool moves_in = in_place[size_t(tensor.id)];
    if (moves_in == (tensor.state == ResidencyState::kInPlace)) continue;
    moves_in ? move_to_backing(tensor, lock) : leave_backing(tensor);
  }
  prefetch();
}

void Residency::leave_backing(Movable& tensor) {
  storage(tensor).release();
  if (!storage(tensor).try_leave()) return storage(tensor).hold_again();
  become(tensor, ResidencyState::kNotResident);
  tensor.contents.dirty = false;
  tensor.contents.exist = true;  // zeros, if it was never written
}

void Residency::move_to_backing(Movable& tensor, Lock& lock) {
  while (tensor.state != ResidencyState::kNotResident) {
    expect_no_problem();
    const bool is_held = tensor.waiting_threads > 0 || storage(tensor).is_held();
    if (tensor.is_being_copied() || is_held)
      wait(lock, /*for_release=*/is_held);
    else
      evict(tensor, ResidencyState::kCopyingOut);
  }
  std::byte* in_place = tensor.backing_slot.backing->in_place(tensor.backing_slot.offset);
  if (!tensor.contents.exist && !setup_.simulated) std::memset(in_place, 0, tensor.bytes);
  become(tensor, ResidencyState::kInPlace);
  storage(tensor).place(in_place);  // held for ever
  changed_.notify_all();
}

// Outside of points a use counts as a write of all contents, which the next point that uses the tensor reads.
void Residency::note_use(Storage& storage) {
  Lock lock(mutex_);
  Movable& tensor = tensors_[size_t(storage.number())];
  while (tensor.is_being_copied_out()) {
    queue_.make_urgent(tensor.ticket);
    wait(lock, /*for_release=*/false);
  }
  tensor.contents.note_write();
  tensor.contents.overwritten_at = clock_.now() + clock_.next_use(tensor.id);
}

// Begins to fetch a tensor that has no slot. If no other memory is free, it may evict any tensor that nothing holds.
void Residency::request(Movable& tensor) {
  if (tensor.state == ResidencyState::kNotResident && evicting_for_other_ == 0 &&
      !fetch(tensor, clock_.next_use(tensor.id), Victims::kLater) && evicting_for_other_ == 0)
    fetch(tensor, 0, Victims::kAny);
  if (tensor.state == ResidencyState::kCopyingIn) queue_.make_urgent(tensor.ticket);
}

// Whether nothing in the pool can leave before a point ends.
bool Residency::points_use_all() const {
  return std::all_of(tensors_.begin(), tensors_.end(), [&](const Movable& t) {
    const bool has_slot = t.state != ResidencyState::kNotResident && t.state != ResidencyState::kInPlace;
    return !t.is_being_copied() && (!has_slot || clock_.is_used_now(t.id));
  });
}

void Residency::bring(Storage& storage) {
  Lock lock(mutex_);
  Movable& tensor = tensors_[size_t(storage.number())];
  double waited_s = 0, seen_s = now_s();
  int64_t points_left = points_left_;
  struct Wanted {
    int& threads;
    ~Wanted() { --threads; }
  } wanted{++tensor.waiting_threads};
  while (!storage.try_hold()) {
    expect_no_problem();
    request(tensor);
    if (storage.is_placed()) continue;
    const double now = now_s();
    waited_s +=
        std::min(now - std::exchange(seen_s, now), 1.0);  // a time in which this process was stopped counts little
    if (points_left != points_left_ || !points_use_all()) waited_s = 0, points_left = points_left_;
    if (waited_s > setup_.patience_s)
      throw RunError({.where = "memory",
                      .what = "the fast tier has no room for " + tensor.name +
                              ": the layers under way use all tensors in its pool, and none of them announced this one",
                      .got = format_bytes(tensor.bytes) + " beside " + format_bytes(slots_.used_bytes()) + " of " +
                             format_bytes(slots_.bytes()),
                      .hint = "a larger memory.fast_gib, and please report this"});
    wait(lock, /*for_release=*/true);
  }
}

void Residency::pretend_written(Storage& storage) {
  const std::lock_guard lock(mutex_);
  tensors_[size_t(storage.number())].contents.exist = true;
}

void Residency::set_times(Times times) {
  const std::lock_guard lock(mutex_);
  policy_.set_times(std::move(times));
}

std::vector<double> Residency::point_seconds() const {
  const std::lock_guard lock(mutex_);
  return shortest_s_;
}

ResidencyTotals Residency::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

}  // namespace ditrain::automem
