// The training objective: section `diffusion` of a config. Words are rows of registry.hpp or enums of this file;
// make_process (process.hpp) makes a Process of a Config.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "ditrain/base/words.hpp"

namespace ditrain::diffusion {

struct ProcessKind;
struct BetaSchedule;
struct Prediction;
struct Objective;
struct LossWeight;
struct Sampler;
struct SamplerConfig;

/// The first row of a table of the registry: the default of a config.
template <class Row>
const Row* default_row();

/// learned_range (needs 2C output channels) | fixed_large (beta_t) | fixed_small (posterior variance), or
/// auto: learned_range if the model has the channels, else fixed_large.
enum class Variance { kAuto, kLearnedRange, kFixedLarge, kFixedSmall };
inline constexpr Word<Variance> kVariances[] = {{"auto", Variance::kAuto},
                                                {"learned_range", Variance::kLearnedRange},
                                                {"fixed_large", Variance::kFixedLarge},
                                                {"fixed_small", Variance::kFixedSmall}};
constexpr std::span<const Word<Variance>> words_of(Variance) { return kVariances; }

/// Distribution of the times that training draws from (0, 1).
enum class TimeDraw { kUniform, kLogitNormal };
inline constexpr Word<TimeDraw> kTimeDraws[] = {{"uniform", TimeDraw::kUniform},
                                                {"logit_normal", TimeDraw::kLogitNormal}};
constexpr std::span<const Word<TimeDraw>> words_of(TimeDraw) { return kTimeDraws; }

/// A process reads its own keys only; config::validate refuses those of another process that are not at their defaults.
struct Config {
  const ProcessKind* process = default_row<ProcessKind>();  ///< ddpm | flow
  const Prediction* prediction = nullptr;                   ///< null: the first that the process lists

  // Process ddpm; process flow, which has no steps, reads only `loss` of these.
  int64_t num_steps = 1000;
  const BetaSchedule* schedule = default_row<BetaSchedule>();
  Variance variance = Variance::kAuto;
  /// mse_vb: mse + variational bound in bits; the bound trains only the variance channels (stop-gradient on the mean);
  ///         the same as mse if the variance is fixed
  /// mse:    only the first C channels are trained; variance channels, if there are any, get a gradient of zero
  /// kl:     variational bound x num_steps; trains all channels
  const Objective* loss = default_row<Objective>();
  const LossWeight* loss_weight = default_row<LossWeight>();  ///< weight of the mse by time: none | min_snr
  double min_snr_gamma = 5;

  // Process flow; the times of ddpm are uniform over its steps. See flow.hpp.
  TimeDraw time = TimeDraw::kUniform;
  double time_mean = 0, time_deviation = 1;  ///< mean and standard deviation of the logit of a logit_normal time
  double noise_scale = 1;                    ///< standard deviation of the noise
  double time_shift = 1;                     ///< above 1: more noise, in training and in sampling
};

/// The meaning of the model's output: the config's prediction, or the default of the process if that is null.
const Prediction& prediction_of(const Config& config);

/// One sample is [channels, pixels], row-major; pixels = H * W.
struct Shape {
  int64_t channels = 0, pixels = 0;
  int64_t elements() const { return channels * pixels; }
};

/// The interval between noise (0) and data (1) in which guidance acts, in terms of Process::data_share; both ends
/// included.
struct GuidedInterval {
  double from = 0, to = 1;
  bool contains(double data_share) const { return from <= data_share && data_share <= to; }
  std::string text() const;  ///< "[0.1, 1]"
};

}  // namespace ditrain::diffusion
