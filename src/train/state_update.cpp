#include "ditrain/train/state_update.hpp"

namespace ditrain::train {

void ReplicatedUpdate::update_group(int64_t k, const optim::StepSettings& settings) {
  const plan::UpdateGroup& group = plan_.updates.groups[size_t(k)];
  if (saver_ != nullptr && saver_->reads_state()) saver_->before_update(group.arena);
  for_pieces(group.mine, group.pieces, group.first_update,
             [&](const autograd::ArenaSlice& piece) { optim::update(ctx_, config_, settings, parameters_, piece); });
}

void StateUpdate::copy_own_part(const Tensor& whole, const autograd::OptimizerState& state) {
  for (const plan::UpdateGroup& group : plan_.updates.groups)
    for (const autograd::ArenaSlice& part : state.layout.held(group.mine))
      optim::copy_as_updated(ctx_, whole.slice(part.begin, {part.size()}), state.of(part));
}

}  // namespace ditrain::train
