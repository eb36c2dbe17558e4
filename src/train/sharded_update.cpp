#include "ditrain/train/sharded_update.hpp"

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/plan/automem_plan.hpp"

namespace ditrain::train {
namespace {

Tensor of_arena(const Tensor& arena, const parallel::Range& slice) { return arena.slice(slice.begin, {slice.size()}); }

}  // namespace

ShardedUpdate::ShardedUpdate(const dist::Shards& shards, dist::Engine& engine, const optim::Config& config,
                             autograd::ParameterStore& parameters, ops::Context& ctx)
    : shards_(shards),
      engine_(engine),
      config_(config),
      parameters_(parameters),
      ctx_(ctx),
      grads_(parameters.grads),
      requests_(size_t(shards.grid().size())) {}

void ShardedUpdate::send(int64_t k) {
  const parallel::Range bucket = shards_.grid()[k];
  engine_.communicator().count_gradients();
  requests_[size_t(k)] = engine_.start_allgather(grads_ + bucket.begin, bucket.size(), shards_.grid().shard_grain(k));
}

std::optional<dist::ReductionOutcome> ShardedUpdate::wait(int64_t k, const char* what) {
  engine_.communicator().await(*requests_[size_t(k)], std::string("bucket ") + std::to_string(k + 1) + " of " +
                                                          std::to_string(shards_.grid().size()) + " of the " + what);
  return std::exchange(requests_[size_t(k)], nullptr)->outcome();
}

void ShardedUpdate::update(int64_t first, int64_t last, const optim::StepSettings& settings) {
  const auto change = [&](const dist::Shards::Part& part) {
    optim::adamw_ema_step(ctx_, config_, settings, parameters_, {{part.arena.begin, part.arena.end}, part.state});
    optim::copy_as_updated(ctx_, of_arena(parameters_.values, part.arena), of_arena(parameters_.grads, part.arena));
  };
  for (int64_t k = first; k < last; ++k) {
    const dist::Shards::Part& mine = shards_.parts()[size_t(k)];
    if (saver_ != nullptr) saver_->before_update(mine.arena);
    if (automem_ == nullptr)
      change(mine);
    else
      for (const dist::Shards::Part& piece : plan::pieces_of(mine, parameters_))
        automem_->update(plan::update_point(piece.arena.begin, parameters_), [&] { change(piece); });
    send(k);
  }
}

// The weights of a slice, from where gradients were.
void ShardedUpdate::take(const parallel::Range& slice) {
  std::vector<Tensor> tensors{of_arena(parameters_.grads, slice), of_arena(parameters_.values, slice)};
  if (parameters_.values_bf16.defined()) tensors.push_back(of_arena(parameters_.values_bf16, slice));
  for_common_parts(tensors, [&](int64_t, const std::vector<Tensor>& part) {
    const Pin<float> from(part[0]), values(part[1]);
    std::optional<Pin<BFloat16>> copy;
    if (part.size() > 2) copy.emplace(part[2]);
    ctx_.for_range(ops::WorkKind::kOptimizer, part[0].size(), optim::kUpdateGrain,
                   [&](int64_t begin, int64_t end, const parallel::Worker&) {
                     std::memcpy(values + begin, from + begin, size_t(end - begin) * sizeof(float));
                     if (copy) kernels::convert(from + begin, *copy + begin, end - begin);
                   });
  });
}

void ShardedUpdate::finish(dist::StepOutcome& step) {
  for (int64_t k = 0; k < shards_.grid().size(); ++k) {
    const double start = now_s();
    if (const auto arrived = wait(k, "new weights")) step.add(*arrived);
    step.exposed_s += now_s() - start;
    const parallel::Range bucket = shards_.grid()[k];
    if (automem_ == nullptr)
      take(bucket);
    else
      for (const autograd::ArenaSlice& s : parameters_.segments({bucket.begin, bucket.end}))
        automem_->update(plan::take_point(s.begin, parameters_), [&] { take({s.begin, s.end}); });
  }
}

const Tensor& ShardedUpdate::whole(const Tensor& state) {
  for (int64_t k = 0; k < shards_.grid().size(); ++k) {
    const dist::Shards::Part& mine = shards_.parts()[size_t(k)];
    optim::copy_as_updated(ctx_, state.slice(mine.state, {mine.arena.size()}), of_arena(parameters_.grads, mine.arena));
    send(k);
  }
  for (int64_t k = 0; k < shards_.grid().size(); ++k) wait(k, "optimiser's state");
  return parameters_.grads;
}

void ShardedUpdate::keep(const Tensor& whole, const Tensor& state) {
  for (const dist::Shards::Part& mine : shards_.parts())
    optim::copy_as_updated(ctx_, of_arena(whole, mine.arena), state.slice(mine.state, {mine.arena.size()}));
}

}  // namespace ditrain::train
