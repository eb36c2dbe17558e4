#include "ditrain/train/sharded_update.hpp"

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/kernels/elementwise.hpp"

namespace ditrain::train {

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
  const Pin<float> values(parameters_.values);
  for (int64_t k = first; k < last; ++k) {
    const dist::Shards::Part& mine = shards_.parts()[size_t(k)];
    if (saver_ != nullptr) saver_->before_update(mine.arena);
    optim::adamw_ema_step(ctx_, config_, settings, parameters_, {{mine.arena.begin, mine.arena.end}, mine.state});
    optim::copy_as_updated(ctx_, values + mine.arena.begin, grads_ + mine.arena.begin, mine.arena.size());
    send(k);
  }
}

void ShardedUpdate::finish(dist::StepOutcome& step) {
  const Pin<float> values(parameters_.values);
  std::optional<Pin<BFloat16>> copy;
  if (parameters_.values_bf16.defined()) copy.emplace(parameters_.values_bf16);
  for (int64_t k = 0; k < shards_.grid().size(); ++k) {
    const double start = now_s();
    if (const auto arrived = wait(k, "new weights")) step.add(*arrived);
    step.exposed_s += now_s() - start;
    const parallel::Range bucket = shards_.grid()[k];
    ctx_.for_range(ops::WorkKind::kOptimizer, bucket.size(), optim::kUpdateGrain,
                   [&](int64_t begin, int64_t end, const parallel::Worker&) {
                     const int64_t at = bucket.begin + begin;
                     std::memcpy(values + at, grads_ + at, size_t(end - begin) * sizeof(float));
                     if (copy) kernels::convert(grads_ + at, *copy + at, end - begin);
                   });
  }
}

const Tensor& ShardedUpdate::whole(const Tensor& state) {
  const Pin<float> own(state);
  for (int64_t k = 0; k < shards_.grid().size(); ++k) {
    const dist::Shards::Part& mine = shards_.parts()[size_t(k)];
    optim::copy_as_updated(ctx_, own + mine.state, grads_ + mine.arena.begin, mine.arena.size());
    send(k);
  }
  for (int64_t k = 0; k < shards_.grid().size(); ++k) wait(k, "optimiser's state");
  return parameters_.grads;
}

void ShardedUpdate::keep(const Tensor& whole, const Tensor& state) {
  const Pin<float> from(whole), own(state);
  for (const dist::Shards::Part& mine : shards_.parts())
    optim::copy_as_updated(ctx_, from + mine.arena.begin, own + mine.state, mine.arena.size());
}

}  // namespace ditrain::train
