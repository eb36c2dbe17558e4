// The optimiser of a run whose ranks keep a part of its state each (dist.shard_optimizer): moments and EMA of its
// shards, nothing of the others. A rank updates the weights of its shards; the gradient arena, whose sums are used up
// by then, carries the new weights to all.
//
//   bucket of gradients summed -> update(): own shard of the weights -> gradient arena -> all ranks
//     -> finish(): weights
//
// What needs a whole arena of the state (checkpoints, samples) gets it in the gradient arena, too: no further
// memory. What lies there between parameters stays 0, as it is in all arenas.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "ditrain/dist/engine.hpp"
#include "ditrain/dist/shards.hpp"
#include "ditrain/train/state_update.hpp"

namespace ditrain::train {

class ShardedUpdate final : public StateUpdate {
 public:
  /// The store has its gradients in the engine's arena, and plan.state_elements() elements of each moment and of the
  /// EMA. The plan outlives the object.
  ShardedUpdate(const plan::GradientPlan& plan, dist::Engine& engine, const optim::Config& config,
                autograd::ParameterStore& parameters, ops::Context& ctx);

  /// Updates this rank's shard of a bucket, and starts to send it to all. In one order on all ranks.
  void update_group(int64_t k, const optim::StepSettings& settings) override;
  /// Returns when the weights (and their bf16 copy) of all buckets are here.
  /// Errors: RunError naming ranks if they are not, after the communicator's timeout
  void finish(dist::StepOutcome& step) override;

  /// Collective. It lies in the gradient arena: valid until the next call or step.
  const Tensor& whole(const Tensor& state) override;
  void keep(const Tensor& whole, const Tensor& state) override;
  std::vector<dist::Shards::Part> parts() const override { return shards_.parts(); }

 private:
  void send(int64_t k);
  std::optional<dist::ReductionOutcome> wait(int64_t k, const char* what);

  const dist::Shards shards_;
  dist::Engine& engine_;
  Pin<float> grads_;
  std::vector<std::unique_ptr<dist::Request>> requests_;  // by bucket
};

}  // namespace ditrain::train
