#include "ditrain/train/state_update.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/plan/automem_plan.hpp"

namespace ditrain::train {

void StateUpdate::update_slice(const parallel::Range&, const optim::StepSettings&) {
  DITRAIN_CHECK(false, "an update of a slice that ranks share out");
}

// Buckets are counted from the arena's end and leave no gaps. Beside a checkpoint they are updated one by one, so that
// each waits for its own bytes only.
void ReplicatedUpdate::update(int64_t first, int64_t last, const optim::StepSettings& settings) {
  const dist::BucketGrid& grid = plan_.buckets;
  if (saver_ == nullptr || !saver_->reads_state()) return change({grid[last - 1].begin, grid[first].end}, settings);
  for (int64_t k = first; k < last; ++k) update_slice(grid[k], settings);
}

void ReplicatedUpdate::update_slice(const parallel::Range& slice, const optim::StepSettings& settings) {
  if (saver_ != nullptr && saver_->reads_state()) saver_->before_update(slice);
  change(slice, settings);
}

// Where the arenas move in segments one by one, from their end.
void ReplicatedUpdate::change(const parallel::Range& slice, const optim::StepSettings& settings) {
  const auto update = [&](int64_t begin, int64_t end) {
    optim::adamw_ema_step(ctx_, config_, settings, parameters_, {{begin, end}, begin});
  };
  if (automem_ == nullptr) return update(slice.begin, slice.end);
  const std::vector<autograd::ArenaSlice> segments = parameters_.segments({slice.begin, slice.end});
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment)
    automem_->update(plan::segment_point(segment->begin, parameters_), [&] { update(segment->begin, segment->end); });
}

// Slice by slice where updates go so: the worker that writes a page first has it in its NUMA domain.
void ReplicatedUpdate::keep(const Tensor& whole, const Tensor& state) {
  const auto copy = [&](const parallel::Range& slice) {
    optim::copy_as_updated(ctx_, whole.slice(slice.begin, {slice.size()}), state.slice(slice.begin, {slice.size()}));
  };
  std::vector<parallel::Range> slices;
  for (const autograd::ArenaSlice& slice : plan_.gradient_slices) slices.push_back({slice.begin, slice.end});
  if (plan_.updates_early)
    for (int64_t k = 0; k < plan_.buckets.size(); ++k) slices.push_back(plan_.buckets[k]);
  if (slices.empty()) slices.push_back({0, whole.size()});
  for (const parallel::Range& slice : slices) copy(slice);
}

}  // namespace ditrain::train
