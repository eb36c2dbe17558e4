#include "ditrain/train/state_update.hpp"

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
  const int64_t begin = grid_[last - 1].begin, end = grid_[first].end;
  optim::adamw_ema_step(ctx_, config_, settings, parameters_, {{begin, end}, begin});
}

// Slice by slice where updates go so: the worker that writes a page first has it in its NUMA domain.
void ReplicatedUpdate::keep(const Tensor& whole, const Tensor& state) {
  const Pin<float> from(whole), to(state);
  const auto copy = [&](const parallel::Range& slice) {
    optim::copy_as_updated(ctx_, from + slice.begin, to + slice.begin, slice.size());
  };
  if (!updates_early_) return copy({0, whole.size()});
  for (int64_t k = 0; k < grid_.size(); ++k) copy(grid_[k]);
}

}  // namespace ditrain::train
