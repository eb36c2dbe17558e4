// Settings of the optimiser and of the exponential moving average.
#pragma once
#include <cstdint>
#include <span>

#include "ditrain/base/words.hpp"

namespace ditrain::optim {

/// Learning rate schedule after the warm-up.
enum class LrSchedule { kConstant, kCosine, kWsd };
inline constexpr Word<LrSchedule> kLrSchedules[] = {
    {"constant", LrSchedule::kConstant}, {"cosine", LrSchedule::kCosine}, {"wsd", LrSchedule::kWsd}};
constexpr std::span<const Word<LrSchedule>> words_of(LrSchedule) { return kLrSchedules; }

/// The optimiser; each has a row in optim/algorithms.cpp.
enum class Kind { kAdamW, kMuon };
inline constexpr Word<Kind> kKinds[] = {{"adamw", Kind::kAdamW}, {"muon", Kind::kMuon}};
constexpr std::span<const Word<Kind>> words_of(Kind) { return kKinds; }

struct Config {
  Kind kind = Kind::kAdamW;
  double lr = 1e-4;
  double muon_lr = 1e-3;  ///< kMuon: learning rate of matrices in blocks; follows the schedule of lr
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  ///< decoupled; on every parameter, as torch.optim.AdamW without groups
  double clip_norm = 0;     ///< largest L2 norm of all gradients together; 0: no clipping
  LrSchedule schedule = LrSchedule::kConstant;
  int64_t warmup_steps = 0;  ///< lr rises linearly from lr / warmup_steps
  double min_lr = 0;         ///< final learning rate of cosine and wsd
  double decay_share = 0.4;  ///< wsd: share of all steps, the last ones, in which the learning rate falls linearly
};

struct EmaConfig {
  double decay = 0.9999;
  bool warmup = false;          ///< decay of update k = min(decay, (1 + k) / (10 + k)), k = 0, 1, ...
  int64_t snapshots_every = 0;  ///< steps between snapshots of the power averages (power_average.hpp); 0: none are kept
};

/// Outer steps (optim/outer.hpp): groups of ranks train separately and average their weight changes every `every`
/// steps.
struct OuterConfig {
  int every = 50;         ///< steps between outer steps (a phase)
  double lr = 0.7;        ///< learning rate of the outer optimiser
  double momentum = 0.9;  ///< Nesterov momentum of the outer optimiser
  bool overlap = false;   ///< all-reduce the average during the next phase
  int groups = 0;         ///< no key: nodes of the run, or hosts of the simulated link; 0 until a plan settles it
};

/// Learning rate of update `step` (0 is the first) of `total_steps`.
/// Math:     warm-up: lr (step + 1) / warmup_steps; cosine: min_lr + (lr - min_lr) (1 + cos(pi s)) / 2, s in [0, 1];
///           wsd (warm-up, stable, decay): min_lr + (lr - min_lr) min(1, (total_steps - step) / decay steps)
double learning_rate(const Config& config, int64_t step, int64_t total_steps);
/// EMA decay of update `step` (0 is the first).
double ema_decay(const EmaConfig& config, int64_t step);
/// Share of the initial weights in the EMA after `updates` updates.
/// Math:     product of the decays; a share below 1e-6 may be returned as any number below 1e-6
double ema_share_of_start(const EmaConfig& config, int64_t updates);

}  // namespace ditrain::optim
