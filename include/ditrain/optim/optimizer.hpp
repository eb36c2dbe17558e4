// AdamW and EMA over the flat arenas in one fused pass.
#pragma once
#include "ditrain/autograd/parameters.hpp"
#include "ditrain/ops/context.hpp"
#include "ditrain/optim/config.hpp"

namespace ditrain::optim {

struct StepSettings {
  int64_t step = 0;       ///< 0 is the first update
  double lr = 0;          ///< learning rate of this update, see learning_rate()
  double ema_decay = 0;   ///< EMA decay of this update, see ema_decay()
  double grad_scale = 1;  ///< clipping
};

inline constexpr int64_t kUpdateGrain = 1024;  ///< elements: workers split a slice at its multiples

/// What an update changes: elements of the arenas of values and gradients, and where their moments and EMA begin in the
/// arenas of those (at the same place, unless this rank keeps a part of them only).
struct UpdateSlice {
  autograd::ArenaSlice arena;
  int64_t state = 0;
};

/// Updates values, moments and EMA of a slice or of all parameters from the gradients. Updating all slices is
/// bit-identical to one update of all parameters.
/// Math:     torch.optim.AdamW, then ema = decay ema + (1 - decay) value; see kernels::AdamWStep
/// Threads:  splits the slice by elements
void adamw_ema_step(ops::Context& ctx, const Config& config, const StepSettings& settings,
                    autograd::ParameterStore& parameters, const UpdateSlice& slice);
void adamw_ema_step(ops::Context& ctx, const Config& config, const StepSettings& settings,
                    autograd::ParameterStore& parameters);

/// Copies the new weights of a slice, which lie in the place of its gradients, into the arenas of values and of their
/// bf16 copy.
void take_weights(ops::Context& ctx, autograd::ParameterStore& parameters, const autograd::ArenaSlice& slice);

/// Copies a slice of an arena, split over the workers like its update: a page lies in the domain of the worker that
/// writes it first.
void copy_as_updated(ops::Context& ctx, const Tensor& from, const Tensor& to);

/// L2 norm of all gradients together. NaN or infinite if any gradient is (find_non_finite tells which).
double gradient_norm(ops::Context& ctx, const autograd::ParameterStore& parameters);

/// Factor that limits the norm: min(1, clip_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; 1 if clip_norm is
/// 0.
double clip_factor(double norm, double clip_norm);

}  // namespace ditrain::optim
