#include "ditrain/automem/residency.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "ditrain/base/bytes.hpp"
#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"

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
  DITRAIN_CHECK(setup_.homes.size() == uses_.tensors.size(), "a home for every tensor");
  for (const MovableTensor& tensor : uses_.tensors) {
    const Home& home = setup_.homes[tensors_.size()];
    tensors_.push_back({.id = int64_t(tensors_.size()),
                        .name = tensor.name,
                        .bytes = whole_blocks(tensor.bytes),
                        .written = tensor.written,
                        .home = home,
                        .needs_help = queue_.needs_help(home.backing),
                        .place = home.in_place ? Place::kInPlace : Place::kAway});
    helps_ = helps_ || tensors_.back().needs_help;
  }
  for (const Point& point : uses_.points) {
    size_t needed = 0;
    for (const int id : point.uses)
      if (const Movable& tensor = tensors_[size_t(id)]; tensor.place != Place::kInPlace) needed += tensor.bytes;
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
  if (tensor.place == Place::kInPlace)
    storage(tensor).place(tensor.home.backing->in_place(tensor.home.offset));  // zeroed, and held for ever
  return storages_.back();
}

void Residency::become(Movable& tensor, Place place) {
  making_room_ += int(place == Place::kMakesRoom) - int(tensor.place == Place::kMakesRoom);
  tensor.place = place;
}

void Residency::take_slot(Movable& tensor, size_t offset) {
  tensor.slot = offset;
  slots_.take(offset, tensor.bytes, tensor.id);
  if (setup_.place) setup_.place(tensor.id, offset, tensor.bytes);
}

void Residency::free_slot(Movable& tensor) {
  slots_.free(tensor.slot);
  if (setup_.release) setup_.release(tensor.bytes);
  become(tensor, Place::kAway);
}

// In its slot: contents are there.
void Residency::settle(Movable& tensor) {
  become(tensor, Place::kHere);
  storage(tensor).place(address(tensor));
  storage(tensor).release();
  changed_.notify_all();
}

// A tensor without a slot comes, if it gets one now.
bool Residency::start(Movable& tensor, int64_t distance, Victims victims) {
  if (!make_room(tensor, distance, victims)) return false;
  const int64_t next = clock_.now() + clock_.next_use(tensor.id);
  if (!policy_.is_fresh(tensor, next)) {
    become(tensor, Place::kComing);
    copy(tensor, memory::Direction::kIn);
    return true;
  }
  Contents& contents = tensor.contents;
  contents.fresh_at = next;
  if (!contents.exist && !setup_.simulated) std::memset(address(tensor), 0, tensor.bytes);
  contents.dirty = !contents.exist && tensor.written == Written::kInUpdates;
  contents.exist = true;
  settle(tensor);
  return true;
}

// Takes the slot away: at once if no contents would be lost, else a copy out begins. Whether anything changed.
bool Residency::evict(Movable& tensor, Place until_copied) {
  if (!policy_.needs_copy(tensor)) return drop(tensor);
  become(tensor, until_copied);
  copy(tensor, memory::Direction::kOut);
  return true;
}

// Takes the slot away at once, unless somebody holds or wants the tensor.
bool Residency::drop(Movable& tensor) {
  if (tensor.wanted > 0 || !storage(tensor).try_leave()) return false;
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
                                 .backing = tensor.home.backing,
                                 .tier = tensor.home.tier,
                                 .offset = tensor.home.offset,
                                 .fast = address(tensor),
                                 .bytes = tensor.bytes,
                                 .name = tensor.name,
                                 .done = [this, &tensor, version = tensor.contents.version](
                                             const std::string& problem) { end_copy(tensor, version, problem); }});
}

void Residency::end_copy(Movable& tensor, int64_t version, const std::string& problem) {
  const std::lock_guard lock(mutex_);
  if (problem_.empty()) problem_ = problem;
  if (const Place place = tensor.place; place == Place::kComing) {
    problem.empty() ? settle(tensor) : free_slot(tensor);
  } else {
    become(tensor, Place::kHere);
    if (problem.empty() && version == tensor.contents.version && !clock_.is_written_now(tensor.id)) {
      tensor.contents.dirty = false;
      if (place != Place::kCopiedOut && !clock_.is_used_now(tensor.id))
        drop(tensor);  // a point may have begun meanwhile
    }
  }
  pump();
  changed_.notify_all();
}

void Residency::expect_no_problem() const {
  if (!problem_.empty()) throw RunError({.where = "memory", .what = problem_});
}

std::optional<double> Residency::cost_of(const Movable& tensor, int64_t distance, Victims victims) const {
  if (tensor.place != Place::kHere || storage(tensor).is_held()) return std::nullopt;
  return policy_.cost_of(tensor, distance, victims);
}

// True if the tensor has a slot now. If something has to be copied out first, that begins.
bool Residency::make_room(Movable& tensor, int64_t distance, Victims victims) {
  const auto cost = [&](int64_t owner) { return cost_of(tensors_[size_t(owner)], distance, victims); };
  const auto window = slots_.find(tensor.bytes, cost);
  if (!window) return false;
  for (const int64_t owner : window->owners)
    if (Movable& o = tensors_[size_t(owner)]; policy_.needs_copy(o)) evict(o, Place::kMakesRoom);
  if (making_room_ > 0) return false;
  for (const int64_t owner : window->owners)
    if (!drop(tensors_[size_t(owner)])) return false;
  take_slot(tensor, window->offset);
  return true;
}

// Evicts the cheapest tensors, wherever they lie, until what a point still misses has room, if not in one piece.
// Whether anything left or began to.
bool Residency::clear_for(int64_t time) {
  size_t missing = 0;
  for (const int id : clock_.at(time).uses)
    if (const Movable& tensor = tensors_[size_t(id)]; tensor.place == Place::kAway) missing += tensor.bytes;
  std::vector<std::pair<double, Movable*>> victims;
  for (Movable& tensor : tensors_)
    if (const auto cost = cost_of(tensor, 0, Victims::kLater)) victims.emplace_back(*cost, &tensor);
  std::sort(victims.begin(), victims.end());
  size_t room = free_bytes();
  bool changed = false;
  for (const auto& [cost, tensor] : victims) {
    if (room >= missing) break;
    room += tensor->bytes;
    changed = evict(*tensor, Place::kLeaving) || changed;
  }
  return changed;
}

// Moves what nothing holds to the bottom of the pool, so that the room above is in one piece. Whether anything moved.
bool Residency::compact() {
  bool moved = false;
  for (const int64_t owner : slots_.owners()) {
    Movable& tensor = tensors_[size_t(owner)];
    const size_t to = slots_.lowest(tensor.slot);
    if (to == tensor.slot || tensor.place != Place::kHere || tensor.wanted > 0) continue;
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
    settle(tensor);
    moved = true;
  }
  return moved;
}

// As much as can begin now, in the order of need.
void Residency::pump() {
  if (other_ || !problem_.empty()) return;
  const Victims victims = policy_.victims_ahead(free_bytes());
  for (int64_t d = 0; d < policy_.horizon(); ++d)
    for (const int id : clock_.at(clock_.now() + d).uses) {
      Movable& tensor = tensors_[size_t(id)];
      if (tensor.place != Place::kAway || !policy_.comes_ahead(tensor, d)) continue;
      if (making_room_ > 0 || !start(tensor, d, victims)) return;
    }
}

// The time of a point that begins, or has begun for another cluster.
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

// Whether all that the point uses is here, and nothing that it writes is being copied out; if not, what is missing has
// begun to come, unless something that is held or is being copied stands in its way.
bool Residency::gather(int64_t time, bool ahead) {
  expect_no_problem();
  if (ahead) pump();
  bool all_here = true;
  for (const int id : clock_.at(time).uses) {
    Movable& tensor = tensors_[size_t(id)];
    if (tensor.place == Place::kAway && making_room_ == 0) start(tensor, time - clock_.now(), Victims::kLater);
    const bool is_read_by_copy = tensor.is_being_copied_out() && clock_.is_written_at(id, time);
    if (tensor.place == Place::kComing || is_read_by_copy) queue_.make_urgent(tensor.ticket);
    all_here = all_here && tensor.is_here() && !is_read_by_copy;
  }
  return all_here;
}

// The same; if something is missing and no copy is under way, tensors are evicted or, if none may be, the pool is
// compacted; what comes ahead must not take the room that this makes. `stuck`: neither is possible, and only a release
// of a tensor helps.
bool Residency::gather_or_clear(int64_t time, bool& stuck) {
  stuck = false;
  for (bool ahead = true; !gather(time, ahead); ahead = false) {
    if (std::any_of(tensors_.begin(), tensors_.end(), [](const Movable& t) { return t.is_being_copied(); }))
      return false;
    stuck = !clear_for(time) && !compact();
    if (stuck) return false;
  }
  return true;
}

bool Residency::try_enter(int point) {
  const std::lock_guard lock(mutex_);
  const int64_t t = begin_point(point);
  bool stuck = false;
  return gather_or_clear(t, stuck);
}

// Until something has changed. A worker that lets go of a tensor does not notify, nor does one that takes the last
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
      return !tensors_[size_t(id)].needs_help && tensors_[size_t(id)].place == Place::kAway;
    });
  if (waiting_++ == 0) waiting_since_s_ = now_s();
  for (bool stuck = false; !gather_or_clear(time, stuck);) wait(lock, stuck);
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
    if (const Movable& tensor = tensors_[size_t(id)]; tensor.place == Place::kInPlace) in_place += tensor.bytes;
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
  set_watches(clock_.is_between_points());
  const std::vector<int>& uses = clock_.at(*time).uses;
  for (const int id : uses)
    if (clock_.is_written_at(id, *time)) tensors_[size_t(id)].contents.note_write();
  for (const int id : uses)
    if (Movable& tensor = tensors_[size_t(id)]; policy_.leaves_behind(tensor)) {
      tensor.contents.dirty = true;  // it is copied out even if it has not changed
      evict(tensor, Place::kLeaving);
    }
  pump();
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
    const bool wanted = in_place[size_t(tensor.id)];
    if (wanted == (tensor.place == Place::kInPlace)) continue;
    wanted ? move_home(tensor, lock) : leave_home(tensor);
  }
  pump();
}

void Residency::leave_home(Movable& tensor) {
  storage(tensor).release();
  if (!storage(tensor).try_leave()) return storage(tensor).hold_again();
  become(tensor, Place::kAway);
  tensor.contents.dirty = false;
  tensor.contents.exist = true;  // zeros, if it was never written
}

void Residency::move_home(Movable& tensor, Lock& lock) {
  while (tensor.place != Place::kAway) {
    expect_no_problem();
    const bool is_held = tensor.wanted > 0 || storage(tensor).is_held();
    if (tensor.is_being_copied() || is_held)
      wait(lock, /*for_release=*/is_held);
    else
      evict(tensor, Place::kCopiedOut);
  }
  std::byte* home = tensor.home.backing->in_place(tensor.home.offset);
  if (!tensor.contents.exist && !setup_.simulated) std::memset(home, 0, tensor.bytes);
  become(tensor, Place::kInPlace);
  storage(tensor).place(home);  // held for ever
  changed_.notify_all();
}

// Where no point says what is written: all of it, and it is what the next point that uses the tensor reads.
void Residency::note_use(Storage& storage) {
  Lock lock(mutex_);
  Movable& tensor = tensors_[size_t(storage.number())];
  while (tensor.is_being_copied_out()) {
    queue_.make_urgent(tensor.ticket);
    wait(lock, /*for_release=*/false);
  }
  tensor.contents.note_write();
  tensor.contents.fresh_at = clock_.now() + clock_.next_use(tensor.id);
}

// Sees to it that a tensor without a slot comes. During a step it makes way for what the step uses.
void Residency::ask(Movable& tensor) {
  if (tensor.place == Place::kAway && making_room_ == 0 &&
      !start(tensor, clock_.next_use(tensor.id), Victims::kLater) && making_room_ == 0)
    start(tensor, 0, Victims::kAny);
  if (tensor.place == Place::kComing) queue_.make_urgent(tensor.ticket);
}

void Residency::bring(Storage& storage) {
  Lock lock(mutex_);
  Movable& tensor = tensors_[size_t(storage.number())];
  struct Wanted {
    int& threads;
    ~Wanted() { --threads; }
  } wanted{++tensor.wanted};
  while (!storage.try_hold()) {
    expect_no_problem();
    ask(tensor);
    if (!storage.is_placed()) wait(lock, /*for_release=*/true);
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
