// The tables of what can be chosen by name. What a row is made of is declared here and defined in schedule.cpp,
// predictions.cpp, losses.cpp, ddpm_samplers.cpp or flow_samplers.cpp.
#include "ditrain/diffusion/registry.hpp"

#include "ditrain/base/words.hpp"
#include "ditrain/diffusion/flow.hpp"

namespace ditrain::diffusion {

BetaSchedule::Fn linear_betas, squaredcos_cap_v2_betas;
Prediction::TargetFn epsilon_target, x0_target, v_target, velocity_target;
Prediction::CleanFn epsilon_clean, x0_clean, v_clean, velocity_clean;
Objective::Fn mse_vb_loss, mse_loss, kl_loss;
LossWeight::Fn no_weight, min_snr_weight;
Sampler::StartFn start_ddpm, start_ddim, start_dpm, start_euler, start_heun;

namespace {

constexpr BetaSchedule kBetaSchedules[] = {
    {"linear", linear_betas},
    {"squaredcos_cap_v2", squaredcos_cap_v2_betas},
};

constexpr Objective kObjectives[] = {
    {"mse_vb", mse_vb_loss},
    {"mse", mse_loss},
    {"kl", kl_loss},
};

constexpr LossWeight kLossWeights[] = {
    {"none", no_weight},
    {"min_snr", min_snr_weight},
};

constexpr Prediction kPredictions[] = {
    {"epsilon", epsilon_target, epsilon_clean, "epsilon"},
    {"x0", x0_target, x0_clean, "sample"},
    {"v", v_target, v_clean, "v_prediction"},
    {"velocity", velocity_target, velocity_clean, ""},
};

/// A row of a table above, for the tables below; a name that is not there does not compile.
template <class Row, size_t N>
consteval const Row* row(const Row (&rows)[N], std::string_view name) {
  for (const Row& r : rows)
    if (r.name == name) return &r;
  throw "no such row";
}

constexpr const Prediction* kOfDdpm[] = {row(kPredictions, "epsilon"), row(kPredictions, "x0"), row(kPredictions, "v")};
constexpr const Prediction* kOfFlow[] = {row(kPredictions, "velocity"), row(kPredictions, "x0")};

template <class P>
std::unique_ptr<Process> make(const Config& config, bool learn_sigma) {
  return std::make_unique<P>(config, learn_sigma);
}

constexpr ProcessKind kProcesses[] = {
    {"ddpm", make<Ddpm>, kOfDdpm},
    {"flow", make<Flow>, kOfFlow},
};

constexpr Sampler kSamplers[] = {
    {"ddpm", row(kProcesses, "ddpm"), /*takes_eta=*/false, start_ddpm},
    {"ddim", row(kProcesses, "ddpm"), /*takes_eta=*/true, start_ddim},
    {"dpm++", row(kProcesses, "ddpm"), /*takes_eta=*/false, start_dpm},
    {"euler", row(kProcesses, "flow"), /*takes_eta=*/false, start_euler},
    {"heun", row(kProcesses, "flow"), /*takes_eta=*/false, start_heun},
};

}  // namespace

std::span<const ProcessKind> rows_of(const ProcessKind*) { return kProcesses; }
std::span<const BetaSchedule> rows_of(const BetaSchedule*) { return kBetaSchedules; }
std::span<const Prediction> rows_of(const Prediction*) { return kPredictions; }
std::span<const Objective> rows_of(const Objective*) { return kObjectives; }
std::span<const LossWeight> rows_of(const LossWeight*) { return kLossWeights; }
std::span<const Sampler> rows_of(const Sampler*) { return kSamplers; }

template <class Row>
const Row* default_row() {
  return rows_of(static_cast<const Row*>(nullptr)).data();
}
template const ProcessKind* default_row();
template const BetaSchedule* default_row();
template const Objective* default_row();
template const LossWeight* default_row();

std::vector<const Sampler*> samplers_of(const ProcessKind& process) {
  std::vector<const Sampler*> all;
  for (const Sampler& sampler : kSamplers)
    if (sampler.process == &process) all.push_back(&sampler);
  return all;
}

std::string sampler_words() {
  std::string text;
  for (const ProcessKind& process : kProcesses) {
    std::vector<std::string> names;
    for (const Sampler* sampler : samplers_of(process)) names.emplace_back(sampler->name);
    text += "process " + std::string(process.name) + ": " + alternatives(names) + "; ";
  }
  return text + "auto: the first of these";
}

}  // namespace ditrain::diffusion
