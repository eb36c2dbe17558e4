// Outer steps, for links that are too slow to sum gradients in every step (dist.outer): each group of ranks takes
// `every` steps with its own optimiser, then an outer optimiser updates the weights of the run by the mean change of
// the groups (DiLoCo, Douillard et al. 2023, https://arxiv.org/abs/2311.08105).
//
//   D_m = start_m - w_m            outer gradient of group m, from the weights that its phase began with; D: the mean
//                                  over all M groups
//   b <- momentum b + D            SGD with Nesterov momentum, as torch.optim.SGD; u are the weights of the run
//   u <- u - lr (D + momentum b)
//
// Every group begins the next phase with u. With `overlap` it does not wait for D, which arrives during the next phase
// and is applied at its end; its own part counts at once (eager updates, Kale et al. 2025,
// https://arxiv.org/abs/2502.12996):
//
//   c_m <- momentum c_m + D_m
//   start_m = u - lr / M (D_m + momentum c_m)
//
// u then lacks one phase. The published rule lets each group apply D' + (D_m - D_m') / M with its own optimiser, where
// ' marks the phase before. The optimiser is linear, so that the differences add up to D_m / M and both rules give the
// same weights; here u and b are those of all groups, to the bit. The EMA averages u once per phase, with the product
// of the decays of its steps. Moments of the inner optimiser stay with the group, as published.
//
//   OuterOptimizer outer(config, ranks, store, memory);   // then weights are set
//   outer.begin(ctx);
//   ... steps; after each phase: outer.take_gradient(ctx); sum outer.gradient() over ranks; outer.apply(ctx, decay)
#pragma once
#include <string>
#include <vector>

#include "ditrain/autograd/parameters.hpp"
#include "ditrain/ops/context.hpp"
#include "ditrain/optim/config.hpp"

namespace ditrain::optim {

class OuterOptimizer {
 public:
  /// Allocates arrays in the store's layout, and adds to the store those that checkpoints keep. All groups together
  /// have `ranks` ranks; ranks of a group have the same weights. `shared` holds the gradient. The store must be
  /// allocated for training, without state_parts, and must outlive the object; its arenas may move between tiers.
  OuterOptimizer(const OuterConfig& config, int ranks, autograd::ParameterStore& parameters, memory::Allocator& shared);
  ~OuterOptimizer();  ///< takes from the store what it added
  OuterOptimizer(const OuterOptimizer&) = delete;
  OuterOptimizer& operator=(const OuterOptimizer&) = delete;

  /// Call before the first phase, which begins with the weights of the store. `loaded`: the weights of the run
  /// (ParameterStore::published) and all states were loaded, too; otherwise the run also begins with the weights of the
  /// store.
  void begin(ops::Context& ctx, bool loaded = false);
  /// The array to sum over ranks: [arena_size], this rank's part of the mean.
  const Tensor& gradient() const { return gradient_; }
  /// Gradient, weights and momentum of the run; with overlap also the start and the momentum of the group.
  std::vector<Tensor> arrays() const { return {gradient_, weights_, momentum_, start_, group_momentum_}; }
  /// Writes the gradient of the phase. With overlap the weights become those that the next phase begins with.
  void take_gradient(ops::Context& ctx);
  /// Applies the sum over ranks. Without overlap the weights become those that the next phase begins with.
  /// ema_decay: of the phase.
  void apply(ops::Context& ctx, double ema_decay);

  /// Number of arenas in memory and, per parameter, of tensors in checkpoints: of the whole run, and of each group.
  struct Arrays {
    int in_memory, shared_on_disk, on_disk_per_group;
  };
  static Arrays arrays(const OuterConfig& config);

 private:
  Tensor add_state(const std::string& name, const std::string& title, bool of_group, Tensor data = {});

  const OuterConfig config_;
  const float share_;  // of the mean
  autograd::ParameterStore& parameters_;
  const size_t states_before_;     // in the store
  Tensor gradient_;                // D
  Tensor weights_, momentum_;      // u, b
  Tensor start_, group_momentum_;  // start_m, c_m; of overlap
};

/// The state arrays of a run: those of its optimiser, one per group if there are outer steps, and its power averages.
std::vector<autograd::StateArray> state_arrays(const Config& config, const EmaConfig& ema, bool groups);

}  // namespace ditrain::optim
