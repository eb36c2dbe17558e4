#include "ditrain/train/sharded_update.hpp"

#include <optional>
#include <string>
#include <utility>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/ops/elementwise.hpp"

namespace ditrain::train {
namespace {

Tensor of_arena(const Tensor& arena, const autograd::ArenaSlice& slice) {
  return arena.slice(slice.begin, {slice.size()});
}

}  // namespace

ShardedUpdate::ShardedUpdate(const plan::GradientPlan& plan, dist::Engine& engine, const optim::Config& config,
                             autograd::ParameterStore& parameters, ops::Context& ctx)
    : StateUpdate(plan, config, parameters, ctx),
      shards_(plan.buckets, plan.rank, plan.replicas),
      engine_(engine),
      grads_(parameters.grads),
      requests_(size_t(plan.buckets.size())) {}

void ShardedUpdate::send(int64_t k) {
  const parallel::Range bucket = shards_.grid()[k];
  engine_.communicator().count_gradients();
  requests_[size_t(k)] = engine_.start_allgather(grads_ + bucket.begin, bucket.size(), shards_.grid().cut(k));
}

std::optional<dist::ReductionOutcome> ShardedUpdate::wait(int64_t k, const char* what) {
  engine_.communicator().await(*requests_[size_t(k)], std::string("bucket ") + std::to_string(k + 1) + " of " +
                                                          std::to_string(shards_.grid().size()) + " of the " + what);
  return std::exchange(requests_[size_t(k)], nullptr)->outcome();
}

void ShardedUpdate::update_group(int64_t k, const optim::StepSettings& settings) {
  const plan::UpdateGroup& group = plan_.updates.groups[size_t(k)];
  if (saver_ != nullptr) saver_->before_update(shards_.parts()[size_t(k)]);
  for_pieces(group.mine, group.pieces, group.first_update, [&](const autograd::ArenaSlice& piece) {
    optim::update(ctx_, config_, settings, parameters_, piece);
    optim::copy_as_updated(ctx_, of_arena(parameters_.values, piece), of_arena(parameters_.grads, piece));
  });
  send(k);
}

void ShardedUpdate::finish(dist::StepOutcome& step) {
  for (int64_t k = 0; k < shards_.grid().size(); ++k) {
    const double start = now_s();
    if (const auto arrived = wait(k, "new weights")) step.add(*arrived);
    step.exposed_s += now_s() - start;
    step.bytes += double(shards_.grid()[k].size()) * sizeof(float);
    const plan::UpdateGroup& group = plan_.updates.groups[size_t(k)];
    for_pieces(autograd::ArenaSlice{group.arena.begin, group.arena.end}, group.taken, group.first_take,
               [&](const autograd::ArenaSlice& slice) { optim::take_weights(ctx_, parameters_, slice); });
  }
}

Tensor ShardedUpdate::whole(const autograd::OptimizerState& state) {
  for (int64_t k = 0; k < shards_.grid().size(); ++k) {
    const autograd::ArenaSlice& mine = plan_.updates.groups[size_t(k)].mine;
    ops::zero(ctx_, of_arena(parameters_.grads, mine));  // what the array does not hold
    for (const autograd::ArenaSlice& part : state.layout.held(mine))
      optim::copy_as_updated(ctx_, state.of(part), of_arena(parameters_.grads, part));
    send(k);
  }
  for (int64_t k = 0; k < shards_.grid().size(); ++k) wait(k, "optimiser's state");
  return parameters_.grads;
}

}  // namespace ditrain::train
