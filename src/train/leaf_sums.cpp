#include "ditrain/train/leaf_sums.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "ditrain/kernels/elementwise.hpp"

namespace ditrain::train {

LeafSums::LeafSums(int64_t leaves, const Tensor& grads, ops::Context& ctx) : tree_(leaves), grads_(grads), ctx_(ctx) {
  for (int level = 0; level < tree_.most_waiting(); ++level) waiting_.emplace_back(Shape{grads.size()});
}

void LeafSums::ready(const MicroBatchPlace& micro, const parallel::Range& slice) {
  const int64_t leaf = micro.number;
  const int before = tree_.waiting(leaf), after = before - tree_.merges(leaf);
  const bool waits = leaf + 1 < tree_.terms();
  if (before == after && !waits) return;
  const Pin<float> g(grads_);
  std::vector<std::unique_ptr<Pin<float>>> sums;  // those that take part
  for (int level = after; level < std::max(before, after + 1); ++level)
    sums.push_back(std::make_unique<Pin<float>>(waiting_[size_t(level)]));
  ctx_.for_range(slice.size(), dist::kPiece, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t i = slice.begin + begin; i < slice.begin + end; i += dist::kPiece) {
      const int64_t count = std::min(dist::kPiece, slice.begin + end - i);
      for (int level = before - 1; level >= after; --level)
        kernels::add(*sums[size_t(level - after)] + i, g + i, count);
      if (waits) std::memcpy(*sums[0] + i, g + i, size_t(count) * sizeof(float));
    }
  });
}

}  // namespace ditrain::train
