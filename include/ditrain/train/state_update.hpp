// The update of the weights. Optimiser state and EMA are replicated on every rank, or sharded (sharded_update.hpp).
#pragma once
#include "ditrain/autograd/parameters.hpp"
#include "ditrain/automem/automem.hpp"
#include "ditrain/checkpoint/saver.hpp"
#include "ditrain/plan/gradient_plan.hpp"
#include "ditrain/train/sync_policy.hpp"

namespace ditrain::train {

class StateUpdate : public SyncPolicy {
 public:
  /// The plan outlives the object.
  StateUpdate(const plan::GradientPlan& plan, const optim::Config& config, autograd::ParameterStore& parameters,
              ops::Context& ctx)
      : plan_(plan), config_(config), parameters_(parameters), ctx_(ctx) {}

  /// Changes the weights of one group of the plan's updates, whose gradients are final.
  virtual void update_group(int64_t k, const optim::StepSettings& settings) = 0;
  void update(int64_t first, int64_t last, const optim::StepSettings& settings) final {
    for (int64_t k = first; k < last; ++k) update_group(k, settings);
  }
  /// Returns a state of the store as a whole arena, if every parameter has it (such as the EMA). A state that only some
  /// parameters have: with shards a whole arena with 0 for the others, without shards its own array.
  virtual Tensor whole(const autograd::OptimizerState& state) = 0;
  /// Copies this rank's part of a whole arena into a state of the store, group by group as updates do, because the
  /// worker that writes a page first has it in its NUMA domain.
  void copy_own_part(const Tensor& whole, const autograd::OptimizerState& state);
  /// The elements of the arenas that this rank updates.
  virtual std::vector<parallel::Range> parts() const = 0;
  /// Sets the saver, which may still read data that an update is about to change; it must outlive the object.
  void set_saver(checkpoint::CheckpointSaver* saver) { saver_ = saver; }
  /// Sets the owner of arenas that move between memory tiers piece by piece; null: they do not move.
  void set_automem(automem::AutoMem* automem) { automem_ = automem; }

 protected:
  /// Calls f(all) or, if arenas move, f for each piece; the first piece is update `number` of the step.
  template <class Piece, class F>
  void for_pieces(const Piece& all, const std::vector<Piece>& pieces, int64_t number, const F& f) {
    if (automem_ == nullptr) return f(all);
    for (const Piece& piece : pieces) automem_->update(number++, [&] { f(piece); });
  }

  const plan::GradientPlan& plan_;
  const optim::Config config_;
  autograd::ParameterStore& parameters_;
  ops::Context& ctx_;
  automem::AutoMem* automem_ = nullptr;
  checkpoint::CheckpointSaver* saver_ = nullptr;
};

/// Every rank updates all weights from the same gradients; the results are bit-identical.
class ReplicatedUpdate final : public StateUpdate {
 public:
  using StateUpdate::StateUpdate;
  void update_group(int64_t k, const optim::StepSettings& settings) override;
  Tensor whole(const autograd::OptimizerState& state) override { return state.data; }  // it may be in parts
  std::vector<parallel::Range> parts() const override { return {{0, plan_.buckets.n()}}; }
};

}  // namespace ditrain::train
