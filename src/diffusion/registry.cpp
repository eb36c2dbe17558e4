// The tables of what can be chosen by name.
#include "ditrain/diffusion/registry.hpp"

#include "betas.hpp"
#include "objectives.hpp"
#include "words.hpp"

namespace ditrain::diffusion {

namespace {

constexpr BetaSchedule kBetaSchedules[] = {
    {"linear", linear_betas},
    {"squaredcos_cap_v2", squaredcos_cap_v2_betas},
};

constexpr Objective kObjectives[] = {
    {"mse", mse_loss},
    {"mse_vb", mse_vb_loss},
    {"kl", kl_loss},
};

constexpr Sampler kSamplers[] = {
    {"ddpm", ddpm_step, [](const StepSettings&) { return true; }},
    {"ddim", ddim_step, [](const StepSettings& settings) { return settings.eta > 0; }},
};

}  // namespace

std::span<const BetaSchedule> beta_schedules() { return kBetaSchedules; }
std::span<const Objective> objectives() { return kObjectives; }
std::span<const Sampler> samplers() { return kSamplers; }

const BetaSchedule& find_beta_schedule(std::string_view name) { return find_word("schedule", name, beta_schedules()); }
const Objective& find_objective(std::string_view name) { return find_word("loss", name, objectives()); }
const Sampler& find_sampler(std::string_view name) { return find_word("sampler", name, samplers()); }

}  // namespace ditrain::diffusion
