// Guidance and the sampling loop.
#include "ditrain/diffusion/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/diffusion/registry.hpp"

namespace ditrain::diffusion {

namespace {

[[noreturn]] void bad_sampler(std::string what, std::string got, std::string expected) {
  throw InputError(
      {.where = "diffusion", .what = std::move(what), .got = std::move(got), .expected = std::move(expected)});
}

/// The buffers of one loop and the model call with or without guidance.
class Loop {
 public:
  Loop(const Schedule& schedule, const Rules& rules, const SamplerConfig& config, const Shape& shape,
       const SampleRequest& request)
      : schedule_(schedule),
        rules_(rules),
        config_(config),
        shape_(shape),
        request_(request),
        sampler_(find_sampler(config.kind)),
        guided_(config.cfg_scale != 1),
        model_n_(guided_ ? 2 * request.n : request.n),
        state_n_(request.keep_unconditional_half ? 2 * request.n : request.n),
        out_channels_(rules.output_channels(shape.channels)),
        t_(2 * request.n),
        out_(model_n_ * out_channels_ * shape.pixels),
        noise_(state_n_ * shape.elements()) {
    if (request.labels != nullptr) labels_.assign(request.labels, request.labels + request.n);
    if (!guided_) return;
    labels_.resize(model_n_, request.null_class);
    both_.resize(model_n_ * shape.elements());
  }

  void step(int64_t t, int64_t loop_step, const ModelFn& model, const NoiseFn& noise) {
    run_model(schedule_.timestep_map[t], model);
    const StepSettings settings{.clip_denoised = config_.clip_denoised, .eta = config_.eta};
    const bool noisy = t > 0 && sampler_.needs_noise(settings);
    for (int64_t i = 0; noisy && i < state_n_; ++i) noise(loop_step, i, noise_.data() + i * shape_.elements());
    std::fill(t_.begin(), t_.end(), t);
    sampler_.step(schedule_, rules_, shape_, settings,
                  {.x_t = request_.z,
                   .t = t_.data(),
                   .model_out = out_.data(),
                   .noise = noisy ? noise_.data() : nullptr,
                   .x_prev = request_.z},
                  0, state_n_);
  }

 private:
  void run_model(int64_t timestep, const ModelFn& model) {
    const float* x = request_.z;
    if (guided_) {
      const int64_t half = request_.n * shape_.elements();
      std::copy_n(x, half, both_.begin());
      std::copy_n(x, half, both_.begin() + half);
      x = both_.data();
    }
    std::fill(t_.begin(), t_.end(), timestep);
    model(x, t_.data(), labels_.empty() ? nullptr : labels_.data(), model_n_, out_.data());
    if (guided_) {
      guided_output(out_.data(), request_.n, shape_.channels, out_channels_, shape_.pixels, config_.cfg_scale,
                    config_.cfg_channels);
    }
  }

  const Schedule& schedule_;
  const Rules& rules_;
  const SamplerConfig& config_;
  const Shape shape_;
  const SampleRequest& request_;
  const Sampler& sampler_;
  const bool guided_;
  const int64_t model_n_, state_n_, out_channels_;
  std::vector<int64_t> t_, labels_;
  std::vector<float> out_, noise_, both_;
};

}  // namespace

void SamplerConfig::validate(int64_t num_steps) const {
  find_sampler(kind);
  space_timesteps(num_steps, spacing);
  if (!(eta >= 0 && eta <= 1)) bad_sampler("eta out of range", std::to_string(eta), "0 to 1");
  if (!(cfg_scale >= 0 && std::isfinite(cfg_scale))) {
    bad_sampler("cfg_scale out of range", std::to_string(cfg_scale), "a number from 0");
  }
  if (cfg_channels != -1 && cfg_channels < 1) {
    bad_sampler("cfg_channels out of range", std::to_string(cfg_channels), "at least 1, or all");
  }
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

void sample_loop(const Schedule& schedule, const Rules& rules, const SamplerConfig& config, const Shape& shape,
                 const ModelFn& model, const SampleRequest& request, const NoiseFn& noise, const ProgressFn& progress) {
  if (config.cfg_scale != 1 && (request.labels == nullptr || request.null_class < 0)) {
    bad_sampler("guidance without classes", "cfg_scale " + std::to_string(config.cfg_scale),
                "cfg_scale 1, or a model with classes and labels dropped in training");
  }
  DITRAIN_CHECK(request.n >= 0, "a count of samples");
  DITRAIN_CHECK(!request.keep_unconditional_half || config.cfg_scale != 1, "only guidance has an unconditional half");
  Loop loop(schedule, rules, config, shape, request);
  const int64_t num_steps = schedule.num_steps();
  for (int64_t k = 0; k < num_steps; ++k) {
    loop.step(num_steps - 1 - k, k, model, noise);
    if (progress) progress(k, num_steps, request.z);
  }
}

}  // namespace ditrain::diffusion
