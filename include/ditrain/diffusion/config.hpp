// What a process predicts and how it is trained: the user's words (Config), and their checked form (Rules).
#pragma once
#include <cstdint>
#include <string>

namespace ditrain::diffusion {

struct Config {
  int64_t num_steps = 1000;
  std::string schedule = "linear";     ///< linear | squaredcos_cap_v2
  std::string prediction = "epsilon";  ///< what the first C output channels mean: epsilon | x0
  /// learned_range (needs 2C output channels) | fixed_large (beta_t) | fixed_small (posterior variance), or
  /// auto: learned_range if the model has the channels, else fixed_large
  std::string variance = "auto";
  /// mse: only the first C channels are trained; variance channels, if there are any, get a gradient of zero
  /// mse_vb: mse + variational bound in bits; the bound trains only the variance channels (stop-gradient on the mean);
  ///         the same as mse if the variance is fixed
  /// kl: variational bound x num_steps; trains all channels
  std::string loss = "mse_vb";

  /// Errors: InputError that names the key for an unknown word or a num_steps for which make_schedule has no schedule.
  void validate() const;
};

enum class Prediction { kEpsilon, kX0 };
enum class Variance { kLearnedRange, kFixedLarge, kFixedSmall };
struct Objective;  // registry.hpp

struct Rules {
  Prediction prediction = Prediction::kEpsilon;
  Variance variance = Variance::kLearnedRange;
  const Objective* objective = nullptr;  ///< a row of the registry, never null after make_rules

  /// Channels of the model's output for data of `channels` channels: twice as many if the variance is learned.
  int64_t output_channels(int64_t channels) const;
};

/// Validates `config` and settles its words for a model with (`learn_sigma`) or without variance channels.
/// Errors:   InputError if variance and learn_sigma contradict each other.
Rules make_rules(const Config& config, bool learn_sigma);

/// One sample is [channels, pixels], row-major; pixels = H * W.
struct Shape {
  int64_t channels = 0, pixels = 0;
  int64_t elements() const { return channels * pixels; }
};

}  // namespace ditrain::diffusion
