#include "ditrain/automem/eviction.hpp"

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

Victims EvictionPolicy::prefetch_victims(size_t free_bytes) const {
  if (strategy_ == Strategy::kPaper || times_.point_s.empty()) return Victims::kLater;
  double way_s = 0, copies_s = 0;
  for (int64_t d = 0; d < clock_.points(); ++d) {
    const int64_t time = clock_.now() + d;
    for (const int id : clock_.at(time).uses) {
      const Movable& tensor = tensors_[size_t(id)];
      if (!wants_prefetch(tensor, d)) continue;
      const memory::TierRates& rates = times_.rates[tensor.backing_slot.tier];
      if (!is_overwritten(tensor, time)) copies_s += double(tensor.bytes) / rates.in_bytes_s;
      // Its slot may have to be emptied first.
      if (tensor.state == ResidencyState::kNotResident && free_bytes < tensor.bytes)
        copies_s += double(tensor.bytes) / rates.out_bytes_s;
    }
    if (copies_s * times_.margin > way_s) return Victims::kLater;
    way_s += times_.point_s[size_t(clock_.position(time))];
  }
  return Victims::kDead;
}

}  // namespace ditrain::automem
