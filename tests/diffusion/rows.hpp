// Short names for what tests choose by name.
#pragma once
#include "ditrain/diffusion/diffusion.hpp"

namespace ditrain::test {

inline diffusion::Schedule make_schedule(std::string_view name, int64_t num_steps) {
  return diffusion::make_schedule(*diffusion::named<diffusion::BetaSchedule>(name), num_steps);
}
inline const diffusion::ProcessKind* process(std::string_view name) {
  return diffusion::named<diffusion::ProcessKind>(name);
}
inline const diffusion::Prediction* prediction(std::string_view name) {
  return diffusion::named<diffusion::Prediction>(name);
}
inline const diffusion::Objective* loss(std::string_view name) { return diffusion::named<diffusion::Objective>(name); }
inline const diffusion::LossWeight* loss_weight(std::string_view name) {
  return diffusion::named<diffusion::LossWeight>(name);
}
inline const diffusion::Sampler* sampler(std::string_view name) { return diffusion::named<diffusion::Sampler>(name); }

}  // namespace ditrain::test
