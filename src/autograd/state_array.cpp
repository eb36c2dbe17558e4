#include "ditrain/autograd/state_array.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"

namespace ditrain::autograd {

StateLayout::StateLayout(const std::vector<ArenaSlice>& slices) {
  for (const ArenaSlice& slice : slices) {
    if (slice.size() == 0) continue;
    if (!slices_.empty() && slices_.back().end == slice.begin)
      slices_.back().end = slice.end;
    else
      slices_.push_back(slice);
  }
  for (const ArenaSlice& slice : slices_) {
    runs_.push_back({slice, size_});
    size_ += slice.size();
  }
  std::sort(runs_.begin(), runs_.end(), [](const Run& a, const Run& b) { return a.arena.begin < b.arena.begin; });
}

int64_t StateLayout::at(int64_t element) const {
  const auto run =
      std::partition_point(runs_.begin(), runs_.end(), [&](const Run& r) { return r.arena.end <= element; });
  if (run == runs_.end() || run->arena.begin > element)
    throw LogicFault({.where = "optimiser state",
                      .what = "an element of the arena that the array does not hold",
                      .got = std::to_string(element)});
  return run->at + element - run->arena.begin;
}

Tensor StateLayout::of(const Tensor& array, const ArenaSlice& slice) const {
  if (slice.size() == 0) return array.slice(0, {0});
  const int64_t first = at(slice.begin);
  DITRAIN_CHECK(at(slice.end - 1) == first + slice.size() - 1, "elements that are no neighbours in an array of state");
  return array.slice(first, {slice.size()});
}

std::vector<ArenaSlice> StateLayout::held(const ArenaSlice& slice) const {
  std::vector<ArenaSlice> parts;
  auto run = std::partition_point(runs_.begin(), runs_.end(), [&](const Run& r) { return r.arena.end <= slice.begin; });
  for (; run != runs_.end() && run->arena.begin < slice.end; ++run)
    parts.push_back({std::max(run->arena.begin, slice.begin), std::min(run->arena.end, slice.end)});
  return parts;
}

}  // namespace ditrain::autograd
