// What updates the weights, and where moments and EMA lie: whole on every rank, or in shards (sharded_update.hpp).
#pragma once
#include "ditrain/autograd/parameters.hpp"
#include "ditrain/train/sync_policy.hpp"

namespace ditrain::train {

class StateUpdate : public SyncPolicy {
 public:
  /// A moment or the EMA of the store, whole.
  virtual const Tensor& whole(const Tensor& state) = 0;
  /// Takes what this rank keeps of a whole arena into `state`, a moment or the EMA of the store.
  virtual void keep(const Tensor& whole, const Tensor& state) = 0;
};

/// Every rank updates all weights from the same gradients, to the same bits.
class ReplicatedUpdate final : public StateUpdate {
 public:
  /// grid: the buckets; updates_early: they are updated one by one.
  ReplicatedUpdate(const dist::BucketGrid& grid, bool updates_early, const optim::Config& config,
                   autograd::ParameterStore& parameters, ops::Context& ctx)
      : grid_(grid), updates_early_(updates_early), config_(config), parameters_(parameters), ctx_(ctx) {}

  void update(int64_t first, int64_t last, const optim::StepSettings& settings) override;
  const Tensor& whole(const Tensor& state) override { return state; }
  void keep(const Tensor& whole, const Tensor& state) override;

 private:
  const dist::BucketGrid grid_;
  const bool updates_early_;
  const optim::Config config_;
  autograd::ParameterStore& parameters_;
  ops::Context& ctx_;
};

}  // namespace ditrain::train
