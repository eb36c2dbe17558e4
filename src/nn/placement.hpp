// Places of results that do not all live at the same time in one block of memory.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace ditrain::nn {

/// Places values, the largest first, each at the lowest address where no value that lives at the same time lies.
/// Value: fields `first` and `last` (steps that write it and that read it last), `offset` (written), and size()
/// elements. Returns the elements of the block.
template <class Value>
int64_t place(std::vector<Value>& values) {
  constexpr int64_t kGrain = 64;  // elements: values begin at cache lines in either type
  int64_t elements = 0;
  std::vector<Value*> placed, all;
  for (Value& v : values) all.push_back(&v);
  std::stable_sort(all.begin(), all.end(), [](const auto* a, const auto* b) { return a->size() > b->size(); });
  for (Value* v : all) {
    std::vector<Value*> beside;
    for (Value* other : placed)
      if (other->first <= v->last && v->first <= other->last) beside.push_back(other);
    std::sort(beside.begin(), beside.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
    v->offset = 0;
    for (const Value* other : beside) {
      if (v->offset + v->size() <= other->offset) break;
      v->offset = std::max(v->offset, (other->offset + other->size() + kGrain - 1) / kGrain * kGrain);
    }
    placed.push_back(v);
    elements = std::max(elements, v->offset + v->size());
  }
  return elements;
}

}  // namespace ditrain::nn
