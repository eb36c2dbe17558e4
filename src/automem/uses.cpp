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
  if (tensors[size_t(tensor)].written == Written::kInForward) return true;
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

std::shared_ptr<Storage> Recorder::make(const std::string& name, size_t bytes) {
  if (bytes < kSmallest) {
    uses_.small_bytes += bytes;
    return PlainSource().make(name, bytes);
  }
  uses_.tensors.push_back({name, bytes, written_});
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
