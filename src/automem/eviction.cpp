#include "ditrain/automem/eviction.hpp"

#include <algorithm>

namespace ditrain::automem {

bool EvictionPolicy::is_overwritten(const Movable& tensor, int64_t time) const {
  if (!tensor.contents.exist) return true;
  if (tensor.contents.overwritten_at == time) return false;  // that use has begun
  return clock_.is_overwritten_at(tensor.id, time);
}

// A cluster that is ahead may be writing the contents now, in a point that lies behind the earliest one that is not
// over.
bool EvictionPolicy::is_dead(const Movable& tensor) const {
  if (clock_.is_used_now(tensor.id)) return false;
  const int64_t next = clock_.next_use(tensor.id);
  return next > 0 && is_overwritten(tensor, clock_.now() + next);
}

std::optional<double> EvictionPolicy::eviction_cost(const Movable& tensor, int64_t distance, Victims victims) const {
  if (tensor.state != ResidencyState::kResident || tensor.waiting_threads > 0) return std::nullopt;
  if (is_dead(tensor)) return 0;
  if (victims == Victims::kDead || clock_.is_used_now(tensor.id)) return std::nullopt;
  const int64_t next = clock_.next_use(tensor.id);
  if (victims == Victims::kLater && next <= distance) return std::nullopt;
  return (tensor.contents.dirty ? 2.0 : 1.0) / double(next + 1);
}

bool EvictionPolicy::evicts_after_use(const Movable& tensor) const {
  return strategy_ == Strategy::kPaper && tensor.state == ResidencyState::kResident &&
         clock_.now() + clock_.next_use(tensor.id) > clock_.last_begun() + 1;
}

int64_t EvictionPolicy::prefetch_horizon() const {
  return strategy_ == Strategy::kPaper ? clock_.last_begun() + 2 - clock_.now() : clock_.points();
}

bool EvictionPolicy::wants_prefetch(const Movable& tensor, int64_t distance) const {
  return !tensor.needs_help && !tensor.is_resident() && clock_.next_use(tensor.id) == distance;
}

int64_t EvictionPolicy::next_prefetch(int64_t after) const {
  int64_t least = prefetch_horizon();
  for (const Movable& tensor : tensors_)
    if (!tensor.needs_help && !tensor.is_resident())
      if (const int64_t next = clock_.next_use(tensor.id); next > after) least = std::min(least, next);
  return least;
}

void EvictionPolicy::set_times(Times times) {
  times_ = std::move(times);
  before_s_.assign(1, 0);
  for (const double s : times_.point_s) before_s_.push_back(before_s_.back() + s);
}

double EvictionPolicy::seconds_until(int64_t distance) const {
  const auto from = size_t(clock_.position(clock_.now())), to = from + size_t(distance), n = times_.point_s.size();
  return (to <= n ? before_s_[to] : before_s_[n] + before_s_[to - n]) - before_s_[from];
}

Victims EvictionPolicy::prefetch_victims(size_t free_bytes) const {
  if (strategy_ == Strategy::kPaper || times_.point_s.empty()) return Victims::kLater;
  // A step has many times more points than tensors that are missing.
  std::vector<std::pair<int64_t, const Movable*>> missing;
  for (const Movable& tensor : tensors_) {
    const int64_t distance = clock_.next_use(tensor.id);
    if (distance < clock_.points() && wants_prefetch(tensor, distance)) missing.emplace_back(distance, &tensor);
  }
  std::sort(missing.begin(), missing.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  double copies_s = 0;
  for (size_t i = 0; i < missing.size(); ++i) {
    const auto& [distance, tensor] = missing[i];
    const memory::TierRates& rates = times_.rates[tensor->backing_slot.tier];
    if (!is_overwritten(*tensor, clock_.now() + distance)) copies_s += double(tensor->bytes) / rates.in_bytes_s;
    // Its slot may have to be emptied first.
    if (tensor->state == ResidencyState::kNotResident && free_bytes < tensor->bytes)
      copies_s += double(tensor->bytes) / rates.out_bytes_s;
    const bool is_last = i + 1 == missing.size() || missing[i + 1].first != distance;  // of this point
    if (is_last && copies_s * times_.margin > seconds_until(distance)) return Victims::kLater;
  }
  return Victims::kDead;
}

}  // namespace ditrain::automem
