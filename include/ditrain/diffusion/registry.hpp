// Everything in this module that is chosen by name. Each list is one table in registry.cpp; help texts, the parsing of
// words (base/words.hpp) and error messages are made from it. The first row of a table is its default.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/diffusion/ddpm.hpp"
#include "ditrain/diffusion/process.hpp"
#include "ditrain/diffusion/sampler.hpp"

namespace ditrain::diffusion {

struct ProcessKind {
  using MakeFn = std::unique_ptr<Process>(const Config& config, bool learn_sigma);
  std::string_view name;
  MakeFn* make;
  std::span<const Prediction* const> predictions;  ///< predictions of the process, the default first
};

struct BetaSchedule {
  using Fn = std::vector<double>(int64_t num_steps);  ///< in (0, 1] and unchecked
  std::string_view name;
  Fn* betas;
};

/// x_t = alpha x0 + sigma noise, at one time.
struct Level {
  double alpha, sigma;
  double inverse_alpha, sigma_by_alpha;  ///< 1 / alpha, sigma / alpha, with fewer roundings than from these two
};

/// The meaning of a model's output. All predictions are linear:
struct Prediction {
  std::string_view name;
  struct Target {
    double by_x0, by_noise;
  };
  struct Clean {
    double by_x_t, by_out;
  };
  using TargetFn = Target(const Level& level);
  using CleanFn = Clean(const Level& level);
  TargetFn* target;                 ///< training target:          target = by_x0 x0 + by_noise noise
  CleanFn* clean;                   ///< predicted clean data:     x0 = by_x_t x_t + by_out out
  std::string_view diffusers_name;  ///< prediction_type of diffusers' schedulers; empty: they have none
};

/// One sample of process ddpm, as an objective sees it.
struct ObjectiveSample {
  const Ddpm& process;
  const LossSample& at;
  int64_t t;
};

struct Objective {
  using Fn = LossTerms(const ObjectiveSample& sample);
  std::string_view name;
  Fn* sample;
};

/// Weight of the square error of a model's output; for the predicted clean data this is weight / clean.by_out^2.
struct LossWeight {
  using Fn = double(const Config& config, const Level& level, const Prediction::Clean& clean);
  std::string_view name;
  Fn* at;
};

struct Sampler {
  using StartFn = std::unique_ptr<SamplerRun>(const Process& process, const SamplerConfig& config, const Shape& shape,
                                              int64_t n);
  std::string_view name;
  const ProcessKind* process;  ///< its process; the first sampler of a process is its default
  bool takes_eta;              ///< if false, eta above 0 is refused
  /// A run over n samples. Errors: InputError for settings that it cannot take
  StartFn* start;
};

/// "process ddpm: ddpm, ddim or dpm++; process flow: euler or heun; auto: the first of these", for helps.
std::string sampler_words();

std::span<const ProcessKind> rows_of(const ProcessKind*);
std::span<const BetaSchedule> rows_of(const BetaSchedule*);
std::span<const Prediction> rows_of(const Prediction*);
std::span<const Objective> rows_of(const Objective*);
std::span<const LossWeight> rows_of(const LossWeight*);
std::span<const Sampler> rows_of(const Sampler*);

/// The row of that name, for code that knows the name. Errors: LogicFault if no row has it
template <class Row>
const Row* named(std::string_view name) {
  const Row* row = nullptr;
  DITRAIN_CHECK(find_word(name, row), "a row of the registry: " + std::string(name));
  return row;
}

/// The samplers of a process, the default first.
std::vector<const Sampler*> samplers_of(const ProcessKind& process);

}  // namespace ditrain::diffusion
