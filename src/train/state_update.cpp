#include "ditrain/train/state_update.hpp"

#include <algorithm>

namespace ditrain::train {

// Buckets are counted from the arena's end and leave no gaps. Beside a checkpoint they are updated one by one, so that
// each waits for its own bytes only.
void ReplicatedUpdate::update(int64_t first, int64_t last, const optim::StepSettings& settings) {
  if (saver_ != nullptr && saver_->reads_state()) {
    if (last - first > 1) {
      for (int64_t k = first; k < last; ++k) update(k, k + 1, settings);
      return;
    }
    saver_->before_update(grid_[first]);
  }
  update_slice({grid_[last - 1].begin, grid_[first].end}, settings);
}

// Where the arenas move in segments one by one, from their end.
void ReplicatedUpdate::update_slice(const parallel::Range& slice, const optim::StepSettings& settings) {
  const auto update = [&](int64_t begin, int64_t end) {
    optim::adamw_ema_step(ctx_, config_, settings, parameters_, {{begin, end}, begin});
  };
  if (automem_ == nullptr) return update(slice.begin, slice.end);
  const std::vector<autograd::ArenaSlice> segments = parameters_.segments();
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
    const int64_t begin = std::max(segment->begin, slice.begin), end = std::min(segment->end, slice.end);
    if (begin < end) automem_->update(parameters_.at(segment->begin).name, [&] { update(begin, end); });
  }
}

// Slice by slice where updates go so: the worker that writes a page first has it in its NUMA domain.
void ReplicatedUpdate::keep(const Tensor& whole, const Tensor& state) {
  const auto copy = [&](const parallel::Range& slice) {
    optim::copy_as_updated(ctx_, whole.slice(slice.begin, {slice.size()}), state.slice(slice.begin, {slice.size()}));
  };
  if (!updates_early_) return copy({0, whole.size()});
  for (int64_t k = 0; k < grid_.size(); ++k) copy(grid_[k]);
}

}  // namespace ditrain::train
