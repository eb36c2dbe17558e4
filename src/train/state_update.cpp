#include "ditrain/train/state_update.hpp"

namespace ditrain::train {

void ReplicatedUpdate::update_group(int64_t k, const optim::StepSettings& settings) {
  const plan::UpdateGroup& group = plan_.updates.groups[size_t(k)];
  if (saver_ != nullptr && saver_->reads_state()) saver_->before_update(group.arena);
  for_pieces(group.mine, group.pieces, group.first_update, [&](const optim::UpdateSlice& piece) {
    optim::adamw_ema_step(ctx_, config_, settings, parameters_, piece);
  });
}

// Group by group, as updates go: the worker that writes a page first has it in its NUMA domain.
void ReplicatedUpdate::keep(const Tensor& whole, const Tensor& state) {
  for (const plan::UpdateGroup& group : plan_.updates.groups) {
    const int64_t begin = group.arena.begin, n = group.arena.size();
    optim::copy_as_updated(ctx_, whole.slice(begin, {n}), state.slice(begin, {n}));
  }
}

}  // namespace ditrain::train
