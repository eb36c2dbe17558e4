// The sharded optimiser (ZeRO-1, dist.shard_optimizer): a rank keeps optimiser state and EMA of its own shards only,
// and updates the weights of these shards. The gradient arena, whose sums are no longer needed by then, carries the new
// weights to all ranks.
//
//   bucket of gradients summed -> update(): own shard of the weights -> gradient arena -> all ranks
//     -> finish(): weights
//
// Code that needs a whole arena of the state (sampling with the EMA) also gets it in the gradient arena, which saves
// memory. Gaps between parameters stay 0 there, as in all arenas.
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
  /// The store has its gradients in the engine's arena, and plan.state_parts() of EMA and states. The plan
  /// outlives the object.
  ShardedUpdate(const plan::GradientPlan& plan, dist::Engine& engine, const optim::Config& config,
                autograd::ParameterStore& parameters, ops::Context& ctx);

  /// Updates this rank's shard of a bucket, and starts to send it to all. Call it in the same order on all ranks.
  void update_group(int64_t k, const optim::StepSettings& settings) override;
  /// Returns when the weights (and their bf16 copy) of all buckets have arrived.
  /// Errors: RunError naming ranks if they have not arrived within the communicator's timeout
  void finish(dist::StepOutcome& step) override;

  /// Collective. The result lies in the gradient arena and is valid until the next call or step.
  Tensor whole(const autograd::OptimizerState& state) override;
  std::vector<parallel::Range> parts() const override { return shards_.parts(); }

 private:
  void send(int64_t k);
  std::optional<dist::ReductionOutcome> wait(int64_t k, const char* what);

  const dist::Shards shards_;
  dist::Engine& engine_;
  Pin<float> grads_;
  std::vector<std::unique_ptr<dist::Request>> requests_;  // by bucket
};

}  // namespace ditrain::train
