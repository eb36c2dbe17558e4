#include "ditrain/automem/uses.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"

namespace ditrain::automem {

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kUpdate:
      return "update";
  }
  return "";
}

StepOrder::StepOrder(int64_t micro_batches, const std::vector<int64_t>& updates_behind, int64_t updates_at_end)
    : micro_batches_(micro_batches), last_backward_(updates_behind.size()) {
  size_ = int(2 * nodes() * micro_batches - nodes());
  const auto add_updates = [this](int64_t n) {
    for (int64_t i = 0; i < n; ++i) updates_.push_back(size_++);
  };
  for (size_t node = updates_behind.size(); node-- > 0;) {
    last_backward_[node] = size_++;
    add_updates(updates_behind[node]);
  }
  add_updates(updates_at_end);
}

int StepOrder::backward(int64_t micro_batch, int64_t node) const {
  if (micro_batch == micro_batches_ - 1) return last_backward_[size_t(node)];
  return int(2 * nodes() * (micro_batch + 1) - 1 - node);
}

size_t Uses::bytes_of(const Point& point) const {
  size_t sum = 0;
  for (int id : point.uses) sum += tensors[size_t(id)].bytes;
  return sum;
}

bool Uses::is_divided(int tensor) const {
  if (tensors[size_t(tensor)].written != Written::kInUpdates) return true;
  return std::none_of(points.begin(), points.end(), [&](const Point& p) {
    return p.phase != Phase::kUpdate && std::binary_search(p.uses.begin(), p.uses.end(), tensor);
  });
}

size_t Uses::total_bytes() const {
  size_t sum = 0;
  for (const MovableTensor& tensor : tensors) sum += tensor.bytes;
  return sum;
}

const Point& Uses::largest() const {
  DITRAIN_CHECK(!points.empty(), "a step without points");
  return *std::max_element(points.begin(), points.end(),
                           [&](const Point& a, const Point& b) { return bytes_of(a) < bytes_of(b); });
}

StepClock::StepClock(const Uses& uses) : uses_(uses), points_of_(uses.tensors.size()) {
  DITRAIN_CHECK(!uses_.points.empty(), "a step without points");
  for (size_t p = 0; p < uses_.points.size(); ++p)
    for (const int id : uses_.points[p].uses) points_of_[size_t(id)].push_back(int(p));
  int pass = 0;
  Phase phase = Phase::kForward;
  for (const Point& point : uses_.points) {
    if (point.phase != Phase::kUpdate && point.phase != phase) ++pass, phase = point.phase;  // updates lie in backward
    pass_of_.push_back(pass);
  }
}

std::optional<int64_t> StepClock::time_of(int point) const {
  DITRAIN_CHECK(point >= 0 && point < points(), "the step has no point " + std::to_string(point));
  const auto it = std::find_if(active_.begin(), active_.end(), [&](int64_t time) { return position(time) == point; });
  return it == active_.end() ? std::nullopt : std::optional(*it);
}

int64_t StepClock::begin(int point) {
  const int64_t next = last_begun_ + 1;
  last_begun_ = next + (point - position(next) + points()) % points();
  active_.insert(last_begun_);
  now_ = *active_.begin();
  return last_begun_;
}

void StepClock::end(int64_t time) {
  active_.erase(time);
  now_ = active_.empty() ? last_begun_ + 1 : *active_.begin();
}

int64_t StepClock::next_use(int64_t tensor) const {
  const std::vector<int>& used = points_of_[size_t(tensor)];
  if (used.empty()) return points();
  const auto next = std::lower_bound(used.begin(), used.end(), position(now_));
  return next != used.end() ? *next - position(now_) : used.front() + points() - position(now_);
}

namespace {

// The phase in which a tensor gets its contents.
Phase phase_of(Written written) {
  switch (written) {
    case Written::kInForward:
      return Phase::kForward;
    case Written::kInBackward:
      return Phase::kBackward;
    case Written::kInUpdates:
      return Phase::kUpdate;
  }
  return Phase::kUpdate;
}

}  // namespace

bool StepClock::is_written_at(int64_t tensor, int64_t time) const {
  const Point& point = at(time);
  return point.phase == phase_of(uses_.tensors[size_t(tensor)].written) &&
         std::binary_search(point.uses.begin(), point.uses.end(), int(tensor));
}

bool StepClock::is_overwritten_at(int64_t tensor, int64_t time) const {
  const Written written = uses_.tensors[size_t(tensor)].written;
  if (written == Written::kInUpdates || at(time).phase != phase_of(written)) return false;
  const std::vector<int>& used = points_of_[size_t(tensor)];
  const auto use = std::lower_bound(used.begin(), used.end(), position(time));
  if (use == used.end() || *use != position(time)) return false;
  return use == used.begin() || pass_of_[size_t(*std::prev(use))] != pass_of_[size_t(*use)];
}

bool StepClock::is_used_now(int64_t tensor) const {
  const std::vector<int>& used = points_of_[size_t(tensor)];
  return std::any_of(active_.begin(), active_.end(),
                     [&](int64_t time) { return std::binary_search(used.begin(), used.end(), position(time)); });
}

bool StepClock::is_written_now(int64_t tensor) const {
  return std::any_of(active_.begin(), active_.end(), [&](int64_t time) { return is_written_at(tensor, time); });
}

std::shared_ptr<Storage> Recorder::make(const std::string& name, size_t bytes) {
  if (bytes < kSmallest) {
    uses_.small_bytes += bytes;
    return PlainSource().make(name, bytes);
  }
  uses_.tensors.push_back({name, bytes, written_});
  used_.push_back(false);
  return std::make_shared<Storage>(*this, bytes, int64_t(uses_.tensors.size()) - 1);
}

// Nothing reads or writes the address.
void Recorder::bring(Storage& storage) {
  alignas(memory::kAlignment) static std::byte nothing[memory::kAlignment];
  const std::lock_guard lock(mutex_);
  if (!storage.try_hold()) storage.place(nothing);
}

void Recorder::note_use(Storage& storage) {
  const std::lock_guard lock(mutex_);
  if (uses_.points.empty()) return;
  std::vector<int>& uses = uses_.points.back().uses;
  const int id = int(storage.number());
  MovableTensor& tensor = uses_.tensors[size_t(id)];
  // What no forward pass has used is a gradient.
  if (!used_[size_t(id)] && tensor.written == Written::kInForward && uses_.points.back().phase == Phase::kBackward)
    tensor.written = Written::kInBackward;
  used_[size_t(id)] = true;
  const auto at = std::lower_bound(uses.begin(), uses.end(), id);
  if (at == uses.end() || *at != id) uses.insert(at, id);
}

void Recorder::begin(int point, Phase phase, const std::string& name) {
  const std::lock_guard lock(mutex_);
  DITRAIN_CHECK(point == int(uses_.points.size()) && point < uses_.order.size(),
                std::string(phase_name(phase)) + " of " + name + " is not the next point of the step");
  uses_.points.push_back({phase, name, {}});
}

}  // namespace ditrain::automem
