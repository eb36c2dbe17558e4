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
      shortest_s_(uses_.points.size()) {
  DITRAIN_CHECK(!uses_.points.empty() && setup_.homes.size() == uses_.tensors.size(), "a home for every tensor");
  for (size_t i = 0; i < uses_.tensors.size(); ++i) {
    const MovableTensor& tensor = uses_.tensors[i];
    items_.push_back(
        {.name = tensor.name, .bytes = whole_blocks(tensor.bytes), .written = tensor.written, .home = setup_.homes[i]});
    items_.back().needs_help = queue_.needs_help(setup_.homes[i].backing);
    helps_ = helps_ || items_.back().needs_help;
  }
  for (size_t p = 0; p < uses_.points.size(); ++p)
    for (const int id : uses_.points[p].uses) items_[size_t(id)].points.push_back(int(p));
  for (const Point& point : uses_.points) {
    size_t needed = 0;
    for (const int id : point.uses)
      if (const Item& item = items_[size_t(id)]; !item.home.in_place) needed += item.bytes;
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
  DITRAIN_CHECK(made_ < items_.size() && items_[made_].name == name && items_[made_].bytes == whole_blocks(bytes),
                "tensor " + name + " is not the next one that was recorded");
  Item& item = items_[made_];
  item.storage = std::make_shared<Storage>(*this, bytes, int64_t(made_++));
  if (!item.home.in_place) return item.storage;
  item.storage->place(item.home.backing->in_place(item.home.offset));  // zeroed, and held for ever
  item.state = State::kHere;
  return item.storage;
}

// The number of points from now to its next use.
int64_t Residency::next_use(const Item& item) const {
  const auto all = int64_t(uses_.points.size());
  if (item.points.empty()) return all;
  const auto at = std::lower_bound(item.points.begin(), item.points.end(), position(now_));
  return at != item.points.end() ? *at - position(now_) : item.points.front() + all - position(now_);
}

// Whether the use at that time overwrites all that is there.
bool Residency::is_fresh(const Item& item, int64_t at) const {
  if (!item.has_contents) return true;
  if (item.fresh_at == at) return false;  // that use has begun
  if (item.written != Written::kInForward || item.points.empty()) return false;
  const auto use = std::lower_bound(item.points.begin(), item.points.end(), position(at));
  if (use == item.points.end() || *use != position(at)) return false;
  if (uses_.points[size_t(*use)].phase != Phase::kForward) return false;
  return use == item.points.begin() || uses_.points[size_t(*std::prev(use))].phase != Phase::kForward;
}

// Whether its contents are worth nothing until they are written again. A cluster that is ahead may be writing them now,
// in a point that lies behind the earliest one that is not over.
bool Residency::is_dead(const Item& item) const {
  if (is_used_now(item)) return false;
  const int64_t next = next_use(item);
  return next > 0 && is_fresh(item, now_ + next);
}

bool Residency::is_written_by(const Item& item, int64_t time) const {
  const Point& point = uses_.points[size_t(position(time))];
  if (point.phase != (item.written == Written::kInUpdates ? Phase::kUpdate : Phase::kForward)) return false;
  return std::binary_search(item.points.begin(), item.points.end(), position(time));
}

bool Residency::is_used_now(const Item& item) const {
  return std::any_of(active_.begin(), active_.end(), [&](const auto& active) {
    return std::binary_search(item.points.begin(), item.points.end(), position(active.first));
  });
}

bool Residency::is_being_written(const Item& item) const {
  return std::any_of(active_.begin(), active_.end(),
                     [&](const auto& active) { return is_written_by(item, active.first); });
}

void Residency::take_slot(Item& item, size_t offset) {
  item.slot = offset;
  slots_.take(offset, item.bytes, id_of(item));
  if (setup_.place) setup_.place(id_of(item), offset, item.bytes);
}

void Residency::free_slot(const Item& item) {
  slots_.free(item.slot);
  if (setup_.release) setup_.release(item.bytes);
}

void Residency::settle(Item& item) {
  item.state = State::kHere;
  item.storage->place(address(item));
  item.storage->release();
  changed_.notify_all();
}

void Residency::copy_out(Item& item) {
  item.leaving = true;
  totals_.bytes_out += double(item.bytes);
  item.ticket = queue_.submit({.direction = memory::Direction::kOut,
                               .backing = item.home.backing,
                               .tier = item.home.tier,
                               .offset = item.home.offset,
                               .fast = address(item),
                               .bytes = item.bytes,
                               .name = item.name,
                               .done = [this, id = id_of(item), version = item.version](const std::string& problem) {
                                 went_out(id, version, problem);
                               }});
}

bool Residency::drop(Item& item) {
  if (item.wanted > 0 || !item.storage->try_leave()) return false;
  free_slot(item);
#ifdef DITRAIN_POISON
  if (!setup_.simulated) std::memset(address(item), 0xff, item.bytes);  // NaN: who still reads it shows
#endif
  item.state = State::kAway;
  item.drop_when_clean = false;
  item.dirty = false;  // it is clean, or its contents are worth nothing
  return true;
}

// What it costs to take an item's place away for one whose next use is `distance` points from now; none: that cannot
// be.
std::optional<double> Residency::cost_of(const Item& item, int64_t distance, Victims victims) const {
  if (item.state != State::kHere || item.leaving || item.wanted > 0 || item.storage->is_held()) return std::nullopt;
  if (is_dead(item)) return 0;
  if (victims == Victims::kDead || is_used_now(item)) return std::nullopt;
  const int64_t next = next_use(item);
  if (victims == Victims::kLater && next <= distance) return std::nullopt;
  return (item.dirty ? 2.0 : 1.0) / double(next + 1);
}

// True if the item has a slot now. If something has to be copied out first, that begins.
bool Residency::make_room(Item& item, int64_t distance, Victims victims) {
  const auto cost = [&](int64_t owner) { return cost_of(items_[size_t(owner)], distance, victims); };
  const auto window = slots_.find(item.bytes, cost);
  if (!window) return false;
  bool clean = true;
  for (const int64_t owner : window->owners) {
    Item& o = items_[size_t(owner)];
    if (!o.dirty || is_dead(o)) continue;
    clean = false, o.drop_when_clean = o.makes_room = true;
    ++making_room_;
    copy_out(o);
  }
  if (!clean) return false;
  for (const int64_t owner : window->owners)
    if (!drop(items_[size_t(owner)])) return false;
  take_slot(item, window->offset);
  return true;
}

bool Residency::start(Item& item, int64_t distance, Victims victims) {
  if (!make_room(item, distance, victims)) return false;
  const int64_t next = now_ + next_use(item);
  if (is_fresh(item, next)) {
    item.fresh_at = next;
    if (!item.has_contents && !setup_.simulated) std::memset(address(item), 0, item.bytes);
    item.dirty = !item.has_contents && item.written == Written::kInUpdates;
    item.has_contents = true;
    settle(item);
    return true;
  }
  item.state = State::kComing;
  totals_.bytes_in += double(item.bytes);
  item.ticket = queue_.submit({.direction = memory::Direction::kIn,
                               .backing = item.home.backing,
                               .tier = item.home.tier,
                               .offset = item.home.offset,
                               .fast = address(item),
                               .bytes = item.bytes,
                               .name = item.name,
                               .done = [this, id = id_of(item)](const std::string& problem) { came_in(id, problem); }});
  return true;
}

void Residency::came_in(int64_t id, const std::string& problem) {
  const std::lock_guard lock(mutex_);
  Item& item = items_[size_t(id)];
  if (problem.empty()) {
    settle(item);
  } else {
    if (problem_.empty()) problem_ = problem;
    free_slot(item);
    item.state = State::kAway;
  }
  pump();
  changed_.notify_all();
}

void Residency::went_out(int64_t id, int64_t version, const std::string& problem) {
  const std::lock_guard lock(mutex_);
  Item& item = items_[size_t(id)];
  item.leaving = false;
  if (std::exchange(item.makes_room, false)) --making_room_;
  if (!problem.empty()) {
    if (problem_.empty()) problem_ = problem;
  } else if (version == item.version && !is_being_written(item)) {
    item.dirty = false;
    if (item.drop_when_clean && !is_used_now(item)) drop(item);  // a point may have begun meanwhile
  }
  item.drop_when_clean = false;
  pump();
  changed_.notify_all();
}

void Residency::expect_no_problem() const {
  if (!problem_.empty()) throw RunError({.where = "memory", .what = problem_});
}

// Whether a copy in has to begin now: for some point, what has to come until then would last as long as the way there.
bool Residency::has_to_begin() const {
  if (setup_.point_s.empty()) return true;
  const auto all = int64_t(uses_.points.size());
  double way_s = 0, copies_s = 0;
  for (int64_t d = 0; d < all; ++d) {
    const int at = position(now_ + d);
    for (const int id : uses_.points[size_t(at)].uses) {
      const Item& item = items_[size_t(id)];
      if (!comes_ahead(item) || item.state == State::kHere || next_use(item) != d) continue;
      const memory::TierRates& rates = setup_.rates[item.home.tier];
      if (!is_fresh(item, now_ + d)) copies_s += double(item.bytes) / rates.in_bytes_s;
      // Its place may have to be emptied first.
      if (item.state == State::kAway && slots_.bytes() - slots_.used_bytes() < item.bytes)
        copies_s += double(item.bytes) / rates.out_bytes_s;
    }
    if (copies_s * setup_.margin > way_s) return true;
    way_s += setup_.point_s[size_t(at)];
  }
  return false;
}

// As much as can begin now, in the order of need.
void Residency::pump() {
  if (other_ || !problem_.empty()) return;
  if (setup_.strategy == Strategy::kPaper) return pump_paper();
  const auto all = int64_t(uses_.points.size());
  const bool has_to = has_to_begin();
  for (int64_t d = 0; d < all; ++d)
    for (const int id : uses_.points[size_t(position(now_ + d))].uses) {
      Item& item = items_[size_t(id)];
      if (!comes_ahead(item) || item.state != State::kAway || next_use(item) != d) continue;
      if (making_room_ > 0) return;
      if (start(item, d, Victims::kDead)) continue;
      if (!has_to || !start(item, d, Victims::kLater)) return;
    }
}

void Residency::pump_paper() {
  for (int64_t t = now_; t <= last_entered_ + 1; ++t)
    for (const int id : uses_.points[size_t(position(t))].uses) {
      Item& item = items_[size_t(id)];
      if (!comes_ahead(item) || item.state != State::kAway) continue;
      if (making_room_ > 0) return;
      if (!start(item, t - now_, Victims::kLater)) return;
    }
}

// What the point used leaves, unless the points that are under way or come next use it too.
void Residency::offload(int point) {
  for (const int id : uses_.points[size_t(point)].uses) {
    Item& item = items_[size_t(id)];
    if (item.home.in_place || item.state != State::kHere || item.leaving) continue;
    if (now_ + next_use(item) <= last_entered_ + 1) continue;
    if (is_dead(item)) {
      drop(item);
      continue;
    }
    item.drop_when_clean = true;
    copy_out(item);
  }
}

// The time of a point that begins, or has begun for another cluster. Points that lie between are left out.
int64_t Residency::begin_point(int point) {
  const auto all = int64_t(uses_.points.size());
  DITRAIN_CHECK(point >= 0 && point < all, "the step has no point " + std::to_string(point));
  for (const auto& [time, since_s] : active_)
    if (position(time) == point) return time;
  int64_t t = last_entered_ + 1;
  t += (point - position(t) + all) % all;
  other_ = false;
  set_watches(false);
  last_entered_ = t;
  active_.emplace(t, now_s());
  now_ = active_.begin()->first;
  for (const int id : uses_.points[size_t(position(t))].uses)
    if (Item& item = items_[size_t(id)]; is_written_by(item, t))
      ++item.version;  // a copy out that is under way does not make it clean
  return t;
}

bool Residency::copies_are_under_way() const {
  return std::any_of(items_.begin(), items_.end(),
                     [](const Item& item) { return item.leaving || item.state == State::kComing; });
}

// Whether all that the point uses is here, and nothing that it writes is being copied out; if not, what is missing has
// begun to come, unless something that is held or is being copied stands in its way.
bool Residency::gather(int64_t time) {
  expect_no_problem();
  pump();
  bool all_here = true;
  for (const int id : uses_.points[size_t(position(time))].uses) {
    Item& item = items_[size_t(id)];
    if (item.state == State::kAway && making_room_ == 0) start(item, time - now_, Victims::kLater);
    const bool is_read_by_copy = item.leaving && is_written_by(item, time);
    if (item.state == State::kComing || is_read_by_copy) queue_.make_urgent(item.ticket);
    all_here = all_here && item.state == State::kHere && !is_read_by_copy;
  }
  return all_here;
}

// The same; where nothing is under way that would change it, room is made in the hard way. `stuck`: not even that helps
// until something is let go of.
bool Residency::gather_or_clear(int64_t time, bool& stuck) {
  for (stuck = false; !gather(time);) {
    if (copies_are_under_way()) return false;
    stuck = !clear_for(time) && !compact();
    if (stuck) return false;
  }
  return true;
}

// Takes the cheapest items out of the pool, wherever they lie, until what a point still misses has room, if not in one
// piece. Whether anything left or began to.
bool Residency::clear_for(int64_t time) {
  size_t missing = 0;
  for (const int id : uses_.points[size_t(position(time))].uses)
    if (const Item& item = items_[size_t(id)]; item.state == State::kAway) missing += item.bytes;
  std::vector<std::pair<double, Item*>> victims;
  for (Item& item : items_)
    if (const auto cost = cost_of(item, 0, Victims::kLater)) victims.emplace_back(*cost, &item);
  std::sort(victims.begin(), victims.end());
  size_t room = slots_.bytes() - slots_.used_bytes();
  bool changed = false;
  for (const auto& [cost, item] : victims) {
    if (room >= missing) break;
    room += item->bytes;
    if (item->dirty && !is_dead(*item)) {
      item->drop_when_clean = true;
      copy_out(*item);
      changed = true;
    } else {
      changed = drop(*item) || changed;
    }
  }
  return changed;
}

// Moves what nothing holds to the bottom of the pool, so that the room above is in one piece. Whether anything moved.
bool Residency::compact() {
  bool moved = false;
  for (const int64_t owner : slots_.owners()) {
    Item& item = items_[size_t(owner)];
    const size_t to = slots_.lowest(item.slot);
    if (to == item.slot || item.state != State::kHere || item.leaving || item.wanted > 0) continue;
    if (!item.storage->try_leave()) continue;
    std::byte* const from = address(item);
    free_slot(item);
    take_slot(item, to);
    if (!setup_.simulated) std::memmove(address(item), from, item.bytes);
#ifdef DITRAIN_POISON
    if (!setup_.simulated) {
      std::byte* const left = std::max(from, address(item) + item.bytes);
      if (left < from + item.bytes) std::memset(left, 0xff, size_t(from + item.bytes - left));
    }
#endif
    settle(item);
    moved = true;
  }
  return moved;
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

void Residency::begin_waiting() {
  if (waiting_++ == 0) waiting_since_s_ = now_s();
}

void Residency::end_waiting() {
  if (--waiting_ == 0) totals_.stall_s += now_s() - waiting_since_s_;
}

void Residency::enter(int point) {
  size_t in_place = 0;
  {
    Lock lock(mutex_);
    const size_t before = active_.size();
    const int64_t t = begin_point(point);
    const bool is_first = active_.size() > before;  // of the clusters
    const std::vector<int>& uses = uses_.points[size_t(position(t))].uses;
    if (is_first)
      totals_.late += std::count_if(uses.begin(), uses.end(), [&](int id) {
        return comes_ahead(items_[size_t(id)]) && items_[size_t(id)].state == State::kAway;
      });
    begin_waiting();
    for (bool stuck = false; !gather_or_clear(t, stuck);) wait(lock, stuck);
    if (helps_) {  // what others wait for
      lock.unlock();
      while (queue_.help()) continue;
      lock.lock();
    }
    end_waiting();
    if (!is_first) return;
    active_[t] = now_s();
    for (const int id : uses)
      if (const Item& item = items_[size_t(id)]; item.home.in_place) in_place += item.bytes;
    if (in_place == 0) return;
    lock.unlock();
    queue_.charge_in_place(in_place);
    lock.lock();
    if (const auto now_active = active_.find(t); now_active != active_.end()) now_active->second = now_s();
  }
}

void Residency::leave(int point) {
  const std::lock_guard lock(mutex_);
  const auto t =
      std::find_if(active_.begin(), active_.end(), [&](const auto& active) { return position(active.first) == point; });
  if (t == active_.end()) return;
  const double seconds = now_s() - t->second;
  double& shortest_s = shortest_s_[size_t(point)];
  shortest_s = shortest_s == 0 ? seconds : std::min(shortest_s, seconds);
  active_.erase(t);
  now_ = active_.empty() ? last_entered_ + 1 : active_.begin()->first;
  set_watches(active_.empty());
  for (const int id : uses_.points[size_t(point)].uses)
    if (Item& item = items_[size_t(id)]; is_written_by(item, point))
      item.dirty = item.has_contents = true, ++item.version;
  if (setup_.strategy == Strategy::kPaper) offload(point);
  pump();
  changed_.notify_all();
}

void Residency::begin_reading() {
  const std::lock_guard lock(mutex_);
  DITRAIN_CHECK(active_.empty(), "something else than a step, within one of its points");
  other_ = true;
  set_watches(false);
}

void Residency::end_reading() { set_watches(true); }

void Residency::use_in_place(const std::vector<bool>& in_place) {
  Lock lock(mutex_);
  DITRAIN_CHECK(active_.empty() && in_place.size() == items_.size(), "a choice for every tensor, between steps");
  for (Item& item : items_) {
    const bool wanted = in_place[size_t(id_of(item))];
    if (wanted == item.home.in_place) continue;
    wanted ? move_home(item, lock) : leave_home(item);
  }
  pump();
}

void Residency::leave_home(Item& item) {
  item.storage->release();
  if (!item.storage->try_leave()) return item.storage->hold_again();
  item.home.in_place = false;
  item.state = State::kAway;
  item.dirty = false;
  item.has_contents = true;  // zeros, if it was never written
}

void Residency::move_home(Item& item, Lock& lock) {
  while (item.state != State::kAway) {
    expect_no_problem();
    const bool is_held = item.wanted > 0 || item.storage->is_held();
    if (item.leaving || item.state == State::kComing || is_held)
      wait(lock, /*for_release=*/is_held);
    else if (item.dirty && !is_dead(item))
      copy_out(item);
    else
      drop(item);
  }
  std::byte* home = item.home.backing->in_place(item.home.offset);
  if (!item.has_contents && !setup_.simulated) std::memset(home, 0, item.bytes);
  item.home.in_place = true;
  item.state = State::kHere;
  item.storage->place(home);  // held for ever
  changed_.notify_all();
}

// Where no point says what is written: all of it, and it is what the next point that uses the tensor reads.
void Residency::note_use(Storage& storage) {
  Lock lock(mutex_);
  Item& item = items_[size_t(storage.number())];
  while (item.leaving) {
    queue_.make_urgent(item.ticket);
    wait(lock, /*for_release=*/false);
  }
  item.dirty = true;
  item.fresh_at = now_ + next_use(item);
  ++item.version;
}

// Sees to it that a tensor without a place comes. During a step it makes way for what the step uses.
void Residency::ask(Item& item) {
  if (item.state == State::kAway && making_room_ == 0 && !start(item, next_use(item), Victims::kLater) &&
      making_room_ == 0)
    start(item, 0, Victims::kAny);
  if (item.state == State::kComing) queue_.make_urgent(item.ticket);
}

void Residency::bring(Storage& storage) {
  Lock lock(mutex_);
  Item& item = items_[size_t(storage.number())];
  struct Wanted {
    int& threads;
    ~Wanted() { --threads; }
  } wanted{++item.wanted};
  while (!storage.try_hold()) {
    expect_no_problem();
    ask(item);
    if (!storage.is_placed()) wait(lock, /*for_release=*/true);
  }
}

void Residency::pretend_written(Storage& storage) {
  const std::lock_guard lock(mutex_);
  items_[size_t(storage.number())].has_contents = true;
}

void Residency::set_times(std::vector<double> point_s, const memory::PerTier<memory::TierRates>& rates, double margin) {
  const std::lock_guard lock(mutex_);
  setup_.point_s = std::move(point_s);
  setup_.rates = rates, setup_.margin = margin;
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
