#include "ditrain/memory/slots.hpp"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "ditrain/base/error.hpp"

namespace ditrain::memory {

SlotMap::SlotMap(size_t bytes) : bytes_(bytes) {
  if (bytes > 0) ranges_[0] = {bytes, kFree};
}

std::optional<SlotMap::Window> SlotMap::find(size_t bytes, const Cost& cost) const {
  std::map<int64_t, std::optional<double>> costs;  // asked once per owner
  const auto cost_of = [&](int64_t owner) -> std::optional<double> {
    if (owner == kFree) return -1.0;
    const auto [it, is_new] = costs.try_emplace(owner);
    if (is_new) it->second = cost(owner);
    return it->second;
  };
  std::optional<Window> best;
  double best_cost = 0;
  for (auto first = ranges_.begin(); first != ranges_.end(); ++first) {
    Window window{first->first};
    size_t sum = 0;
    double highest = -1;
    for (auto r = first; r != ranges_.end() && sum < bytes; ++r) {
      const std::optional<double> c = cost_of(r->second.owner);
      if (!c) break;
      highest = std::max(highest, *c);
      if (r->second.owner != kFree) window.owners.push_back(r->second.owner);
      sum += r->second.bytes;
    }
    if (sum < bytes) continue;
    if (best && std::tuple(best_cost, best->owners.size()) <= std::tuple(highest, window.owners.size())) continue;
    best = std::move(window), best_cost = highest;
  }
  return best;
}

void SlotMap::take(size_t offset, size_t bytes, int64_t owner) {
  auto it = ranges_.upper_bound(offset);
  DITRAIN_CHECK(it != ranges_.begin(), "a slot outside the pool");
  --it;
  const auto [begin, range] = *it;
  DITRAIN_CHECK(range.owner == kFree && offset + bytes <= begin + range.bytes, "a slot that is taken");
  ranges_.erase(it);
  if (begin < offset) ranges_[begin] = {offset - begin, kFree};
  ranges_[offset] = {bytes, owner};
  if (offset + bytes < begin + range.bytes) ranges_[offset + bytes] = {begin + range.bytes - offset - bytes, kFree};
  used_ += bytes;
}

std::vector<int64_t> SlotMap::owners() const {
  std::vector<int64_t> owners;
  for (const auto& [offset, range] : ranges_)
    if (range.owner != kFree) owners.push_back(range.owner);
  return owners;
}

size_t SlotMap::lowest(size_t offset) const {
  const auto it = ranges_.find(offset);
  DITRAIN_CHECK(it != ranges_.end() && it->second.owner != kFree, "a slot that nothing has");
  if (it == ranges_.begin()) return offset;
  const auto before = std::prev(it);
  return before->second.owner == kFree ? before->first : offset;
}

void SlotMap::free(size_t offset) {
  auto it = ranges_.find(offset);
  DITRAIN_CHECK(it != ranges_.end() && it->second.owner != kFree, "a slot that nothing has");
  used_ -= it->second.bytes;
  it->second.owner = kFree;
  if (const auto next = std::next(it); next != ranges_.end() && next->second.owner == kFree)
    it->second.bytes += next->second.bytes, ranges_.erase(next);
  if (it != ranges_.begin())
    if (const auto before = std::prev(it); before->second.owner == kFree)
      before->second.bytes += it->second.bytes, ranges_.erase(it);
}

}  // namespace ditrain::memory
