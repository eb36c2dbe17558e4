// Guidance and the sampling loop.
#include "ditrain/diffusion/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/diffusion/registry.hpp"

namespace ditrain::diffusion {

namespace {

/// The buffers of one loop, and the model call with or without guidance.
class Loop {
 public:
  Loop(const Process& process, const SamplerConfig& config, const Shape& shape, const ModelFn& model,
       const SampleRequest& request)
      : process_(process),
        config_(config),
        shape_(shape),
        model_(model),
        request_(request),
        guided_(config.cfg_scale != 1),
        model_n_(guided_ ? 2 * request.n : request.n),
        state_n_(request.keep_unconditional_half ? 2 * request.n : request.n),
        out_channels_(process.output_channels(shape.channels)),
        run_(sampler_of(config, process).start(process, config, shape, state_n_)),
        t_(2 * request.n),
        out_(model_n_ * out_channels_ * shape.pixels),
        noise_(state_n_ * shape.elements()) {
    if (request.conditions != nullptr) conditions_.assign(request.conditions, request.conditions + request.n);
    if (!guided_ || request.guide != nullptr) return;
    for (int64_t i = 0; i < request.n; ++i) conditions_.push_back(without_label(conditions_[i], request.null_class));
    both_.resize(model_n_ * shape.elements());
  }

  int64_t num_steps() const { return run_->num_steps(); }

  void step(int64_t k, const NoiseFn& noise) {
    const bool noisy = run_->needs_noise(k);
    for (int64_t i = 0; noisy && i < state_n_; ++i) noise(k, i, noise_.data() + i * shape_.elements());
    const GuidedModel evaluate = [this](const float* x, double model_time) { return run_model(x, model_time); };
    run_->step(k, evaluate, noisy ? noise_.data() : nullptr, request_.z);
  }

 private:
  const float* run_model(const float* x, double model_time) {
    const bool guided = guided_ && config_.cfg_interval.contains(process_.data_share(model_time));
    const bool twice = guided_ && request_.guide == nullptr && (guided || request_.keep_unconditional_half);
    const int64_t n = twice ? model_n_ : request_.n;
    if (n > request_.n) {
      const int64_t half = request_.n * shape_.elements();
      std::copy_n(x, half, both_.begin());
      std::copy_n(x, half, both_.begin() + half);
      x = both_.data();
    }
    std::fill(t_.begin(), t_.end(), model_time);
    const Condition* conditions = conditions_.empty() ? nullptr : conditions_.data();
    model_(x, t_.data(), conditions, n, out_.data());
    if (guided && request_.guide != nullptr)
      (*request_.guide)(x, t_.data(), conditions, n, out_.data() + n * out_channels_ * shape_.pixels);
    if (guided) {
      guided_output(out_.data(), request_.n, shape_.channels, out_channels_, shape_.pixels, config_.cfg_scale,
                    config_.cfg_channels);
    }
    return out_.data();
  }

  const Process& process_;
  const SamplerConfig& config_;
  const Shape shape_;
  const ModelFn& model_;
  const SampleRequest& request_;
  const bool guided_;
  const int64_t model_n_, state_n_, out_channels_;
  const std::unique_ptr<SamplerRun> run_;
  std::vector<double> t_;
  std::vector<Condition> conditions_;
  std::vector<float> out_, noise_, both_;
};

std::string names(const std::vector<const Sampler*>& rows) {
  std::vector<std::string> all;
  for (const Sampler* row : rows) all.emplace_back(row->name);
  return alternatives(all);
}

}  // namespace

std::string GuidedInterval::text() const { return fmt::format("[{}, {}]", from, to); }

const Sampler& sampler_of(const SamplerConfig& config, const Process& process) {
  return config.sampler != nullptr ? *config.sampler : *samplers_of(process.kind()).front();
}

void SamplerConfig::validate(const Process& process) const {
  const Sampler& row = sampler_of(*this, process);
  if (row.process != &process.kind()) {
    const auto fitting = samplers_of(process.kind());
    refuse("diffusion", "sampler does not fit process " + std::string(process.kind().name),
           std::string(row.name) + ", which is for process " + std::string(row.process->name), names(fitting),
           "sampler " + std::string(fitting.front()->name));
  }
  if (!(eta >= 0 && eta <= 1)) refuse("diffusion", "eta out of range", std::to_string(eta), "0 to 1");
  if (eta > 0 && !row.takes_eta) {
    refuse("diffusion", "sampler " + std::string(row.name) + " has no choice of noise, which eta is",
           std::to_string(eta), "eta 0, or sampler ddim");
  }
  if (!(cfg_scale >= 0 && std::isfinite(cfg_scale))) {
    refuse("diffusion", "cfg_scale out of range", std::to_string(cfg_scale), "a number from 0");
  }
  if (cfg_channels != -1 && cfg_channels < 1) {
    refuse("diffusion", "cfg_channels out of range", std::to_string(cfg_channels), "at least 1, or all");
  }
  const auto [from, to] = cfg_interval;
  if (!(0 <= from && from < to && to <= 1)) {
    refuse("diffusion", "cfg_interval does not rise within [0, 1]", cfg_interval.text(),
           "such as [0.1, 1]: 0 is noise, 1 data");
  }
  row.start(process, *this, {.channels = 1, .pixels = 1}, 0);  // refuses what it cannot take
}

void guided_output(float* model_out, int64_t n, int64_t channels, int64_t output_channels, int64_t pixels,
                   double cfg_scale, int64_t cfg_channels) {
  const int64_t guided = (cfg_channels < 0 ? channels : std::min(cfg_channels, channels)) * pixels;
  const int64_t stride = output_channels * pixels;
  for (int64_t sample = 0; sample < n; ++sample) {
    float* cond = model_out + sample * stride;
    float* uncond = cond + n * stride;
    for (int64_t i = 0; i < guided; ++i) {
      const double base = uncond[i];
      cond[i] = uncond[i] = static_cast<float>(base + cfg_scale * (cond[i] - base));
    }
  }
}

// A run without samples asks the model at the times of any other.
std::vector<double> model_times(const Process& process, const SamplerConfig& config) {
  config.validate(process);
  const auto run = sampler_of(config, process).start(process, config, {.channels = 1, .pixels = 1}, 0);
  std::vector<double> times;
  const GuidedModel listener = [&](const float*, double model_time) -> const float* {
    times.push_back(model_time);
    return nullptr;
  };
  for (int64_t k = 0; k < run->num_steps(); ++k) run->step(k, listener, nullptr, nullptr);
  return times;
}

void sample_loop(const Process& process, const SamplerConfig& config, const Shape& shape, const ModelFn& model,
                 const SampleRequest& request, const NoiseFn& noise, const ProgressFn& progress) {
  config.validate(process);
  const bool labelled = request.conditions != nullptr && request.null_class >= 0;
  if (config.cfg_scale != 1 && request.guide == nullptr && !labelled) {
    refuse("diffusion", "guidance without classes", "cfg_scale " + std::to_string(config.cfg_scale),
           "cfg_scale 1, or a model with classes and labels dropped in training");
  }
  DITRAIN_CHECK(request.n >= 0, "a count of samples");
  DITRAIN_CHECK(!request.keep_unconditional_half || (config.cfg_scale != 1 && request.guide == nullptr),
                "only guidance by labels has an unconditional half");
  Loop loop(process, config, shape, model, request);
  for (int64_t k = 0; k < loop.num_steps(); ++k) {
    loop.step(k, noise);
    if (progress) progress(k, loop.num_steps(), request.z);
  }
}

}  // namespace ditrain::diffusion
