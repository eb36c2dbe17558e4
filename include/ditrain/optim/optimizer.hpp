// The update of the weights and of their EMA over the flat arenas. An algorithm declares its state
// (autograd/state_array.hpp) and updates slices; the plan (plan/gradient_plan.hpp) decides when each slice is updated.
//
//   store.allocate(For::kTraining, precision, {.states = optim::state_arrays(config)});
//   optim::update(ctx, config, settings, store, slice);
#pragma once
#include "ditrain/autograd/parameters.hpp"
#include "ditrain/ops/context.hpp"
#include "ditrain/optim/config.hpp"

namespace ditrain::optim {

struct StepSettings {
  int64_t step = 0;       ///< 0 is the first update
  double lr = 0;          ///< learning rate of this update, see learning_rate()
  double ema_decay = 0;   ///< EMA decay of this update, see ema_decay()
  double grad_scale = 1;  ///< factor on gradients, for clipping
};

inline constexpr int64_t kUpdateGrain = 1024;  ///< elements: workers split a slice at its multiples

/// An optimiser: a row of optim/algorithms.cpp.
struct Algorithm {
  Kind kind;
  std::vector<autograd::StateArray> states;
  /// Returns the multiply-adds of an update of this parameter if it can only be updated as a whole; 0: a slice may end
  /// inside it. Null: a slice may end anywhere. With shards, each parameter that must be whole is updated by one rank.
  double (*whole_cost)(const autograd::Parameter& parameter, DType arithmetic) = nullptr;
  /// Updates values, states and EMA of a slice from its gradients. Updating all slices is bit-identical to one update
  /// of all parameters, for any number of workers.
  void (*update)(ops::Context& ctx, const Config& config, const StepSettings& settings,
                 autograd::ParameterStore& parameters, const autograd::ArenaSlice& slice) = nullptr;
  /// Bytes of the workspace (ops::Workspace::kOptimizer) that updates of this layout take; null: none.
  size_t (*workspace_bytes)(const autograd::ParameterStore& layout) = nullptr;
};
const Algorithm& algorithm_of(const Config& config);

/// The state arrays of a run: those of its optimiser, then its power averages.
std::vector<autograd::StateArray> state_arrays(const Config& config = {}, const EmaConfig& ema = {});
inline size_t workspace_bytes(const Config& config, const autograd::ParameterStore& layout) {
  const Algorithm& algorithm = algorithm_of(config);
  return algorithm.workspace_bytes == nullptr ? 0 : algorithm.workspace_bytes(layout);
}
/// Updates a slice as Algorithm::update, then the power averages that the store has.
void update(ops::Context& ctx, const Config& config, const StepSettings& settings, autograd::ParameterStore& parameters,
            const autograd::ArenaSlice& slice);

/// Updates values, moments and EMA of a slice or of all parameters from the gradients, in one pass.
/// Math:     torch.optim.AdamW, then ema = decay ema + (1 - decay) value; see kernels::AdamWStep
/// Threads:  splits the slice by elements
void adamw_ema_step(ops::Context& ctx, const Config& config, const StepSettings& settings,
                    autograd::ParameterStore& parameters, const autograd::ArenaSlice& slice);
void adamw_ema_step(ops::Context& ctx, const Config& config, const StepSettings& settings,
                    autograd::ParameterStore& parameters);

/// Copies the new weights of a slice, which have arrived in the memory of its gradients, into the arenas of values and
/// of their bf16 copy.
void take_weights(ops::Context& ctx, autograd::ParameterStore& parameters, const autograd::ArenaSlice& slice);

/// Copies a slice of an arena, split over the workers as its update is, because a page lands in the NUMA domain of the
/// worker that writes it first.
void copy_as_updated(ops::Context& ctx, const Tensor& from, const Tensor& to);

/// L2 norm of all gradients together. Not finite if any gradient is not (find_non_finite says which).
double gradient_norm(ops::Context& ctx, const autograd::ParameterStore& parameters);

/// Factor that limits the norm: min(1, clip_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; 1 if clip_norm is
/// 0.
double clip_factor(double norm, double clip_norm);

/// Whether gradients of this norm are too large for an update: what clipping leaves of the norm is 1e18 or more.
/// Numerics: second moments hold squares of clipped gradients in f32, which end at 3.4e38
bool squares_overflow(double norm, double clip_norm);

}  // namespace ditrain::optim
