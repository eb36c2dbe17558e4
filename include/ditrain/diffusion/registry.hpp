// Everything in this module that is chosen by name. Each list is one table in registry.cpp; help texts, validation and
// error messages are made from it.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ditrain/diffusion/loss.hpp"
#include "ditrain/diffusion/sampler.hpp"

namespace ditrain::diffusion {

struct BetaSchedule {
  std::string_view name;
  std::vector<double> (*betas)(int64_t num_steps);
};

/// One sample, as an objective sees it: the arrays of LossBatch and dout at this sample.
struct ObjectiveSample {
  const Schedule& schedule;
  const Rules& rules;
  Shape shape;
  const float *x0, *x_t, *noise;
  int64_t t;
  const float* out;
  double grad_weight;
  float* dout;  ///< all output channels have to be written; null: no gradient wanted
};

struct Objective {
  std::string_view name;
  LossTerms (*sample)(const ObjectiveSample& sample);
};

struct Sampler {
  std::string_view name;
  void (*step)(const Schedule&, const Rules&, const Shape&, const StepSettings&, const StepBatch&, int64_t begin,
               int64_t end);
  bool (*needs_noise)(const StepSettings& settings);  ///< false: noise may be null at every step
};

std::span<const BetaSchedule> beta_schedules();
std::span<const Objective> objectives();
std::span<const Sampler> samplers();

/// The row of that name. Errors: InputError that names the key, the nearest name and all names.
const BetaSchedule& find_beta_schedule(std::string_view name);
const Objective& find_objective(std::string_view name);
const Sampler& find_sampler(std::string_view name);

}  // namespace ditrain::diffusion
