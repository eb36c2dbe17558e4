// Process flow: the straight line between noise and data.
#include "ditrain/diffusion/flow.hpp"

#include <algorithm>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "parts.hpp"

namespace ditrain::diffusion {

namespace {

// JiT's bound of 1 - t, below which the square error of x0 weighs no more.
constexpr double kLeastSigma = 0.05;

void check(const Config& c, bool learn_sigma) {
  if (learn_sigma) {
    refuse("diffusion", "process flow has no variance to learn", "model.learn_sigma true", "model.learn_sigma false",
           "model.learn_sigma: false");
  }
  if (c.loss == named<Objective>("kl")) {
    refuse("diffusion", "process flow has no variational bound", "loss " + std::string(c.loss->name), "mse",
           "diffusion.loss: mse");
  }
  const auto in_range = [](const char* key, double value, bool positive) {
    if (!std::isfinite(value) || (positive && value <= 0)) {
      refuse("diffusion", std::string(key) + " out of range", std::to_string(value),
             positive ? "a number above 0" : "a number");
    }
  };
  in_range("time_mean", c.time_mean, false);
  in_range("time_deviation", c.time_deviation, true);
  in_range("time_shift", c.time_shift, true);
  in_range("noise_scale", c.noise_scale, true);
  if (c.time == TimeDraw::kUniform && (c.time_mean != 0 || c.time_deviation != 1)) {
    refuse("diffusion", "time_mean and time_deviation are those of logit_normal times",
           std::to_string(c.time_mean) + " and " + std::to_string(c.time_deviation) + " with time uniform", "0 and 1",
           "diffusion.time: logit_normal");
  }
}

Level level_at(double t) { return {.alpha = t, .sigma = 1 - t, .inverse_alpha = 1 / t, .sigma_by_alpha = (1 - t) / t}; }

bool gives_velocity(const Prediction& prediction, double t) {
  const Prediction::Target target = prediction.target(level_at(t));
  return target.by_x0 == 1 && target.by_noise == -1;
}

}  // namespace

constexpr int64_t kMostSteps = 10'000;  // of a section, and sections: far beyond use, and no memory to speak of

double shift_time(double t, double s) {
  return t / (t + s * (1 - t));  // with sigma = 1 - t: 1 - s sigma / (1 + (s - 1) sigma), exact at both ends
}

double logit_normal_time(double z, double mean, double deviation) {
  return 1 / (1 + std::exp(-(mean + deviation * z)));
}

Flow::Flow(const Config& config, bool learn_sigma) : Process(*config.process), config_(config) {
  check(config, learn_sigma);
}

const Flow& as_flow(const Process& process) {
  const auto* flow = dynamic_cast<const Flow*>(&process);
  DITRAIN_CHECK(flow != nullptr, "process " + std::string(process.kind().name) + " is not flow");
  return *flow;
}

double Flow::draw_time(const RandomKey& key) const {
  const double t = config_.time == TimeDraw::kUniform
                       ? (key.bits(0) + 0.5) * 0x1p-32  // neither 0 nor 1
                       : logit_normal_time(key.normal(0), config_.time_mean, config_.time_deviation);
  return shift_time(t, config_.time_shift);
}

double Flow::spread_time(int64_t i, int64_t n) const { return (static_cast<double>(i) + 0.5) / static_cast<double>(n); }

void Flow::add_noise(double time, const float* x0, const float* noise, float* x_t, int64_t n) const {
  DITRAIN_CHECK(time >= 0 && time <= 1, "t = " + std::to_string(time) + " of [0, 1]");
  const auto sigma = static_cast<float>((1 - time) * config_.noise_scale);
  kernels::scale_add(static_cast<float>(time), x0, sigma, noise, x_t, n);
}

double Flow::data_share(double model_time) const {
  if (config_.noise_scale == 1) return model_time;
  return model_time / (model_time + (1 - model_time) * config_.noise_scale);
}

// A prediction speaks of the noise in x_t, which is noise_scale times the normal one of a sample.
Prediction::Target Flow::target_at(double time) const {
  Prediction::Target target = config_.prediction->target(level_at(time));
  target.by_noise *= config_.noise_scale;
  return target;
}

LossTerms Flow::loss(const LossSample& sample) const {
  const double sigma = std::max(1 - sample.time, kLeastSigma);
  const double weight = gives_velocity(*config_.prediction, sample.time) ? 1 : 1 / (sigma * sigma);
  const double mse = mean_square_error(sample, target_at(sample.time), weight * sample.grad_weight, sample.dout);
  return {.mse = mse, .vb = 0, .loss = weight * mse};
}

double Flow::mse(const LossSample& sample) const {
  return mean_square_error(sample, target_at(sample.time), 0, nullptr);
}

std::vector<double> Flow::sampling_times(const Spacing& spacing) const {
  if (spacing.is_strided()) {
    refuse("diffusion", "spacing: process flow has no steps of which some could be left out",
           "\"" + spacing.text() + "\"", "\"N\" or \"N1,N2,...\"", std::to_string(spacing.counts().front()));
  }
  std::vector<double> times = spacing.listed();
  if (!times.empty()) {
    const bool rises = std::is_sorted(times.begin(), times.end(), std::less_equal<>());
    if (!rises || times.size() < 2 || times.front() != 0 || times.back() != 1) {
      refuse("diffusion", "spacing: listed times have to rise from 0 to 1", spacing.text(), "0, ..., 1");
    }
    return times;
  }
  const std::vector<int64_t> counts(spacing.counts().rbegin(), spacing.counts().rend());  // noise comes first
  for (const int64_t count : counts)
    if (count > kMostSteps || int64_t(counts.size()) > kMostSteps)
      refuse("diffusion", "spacing: too many steps", "\"" + spacing.text() + "\"",
             "at most " + std::to_string(kMostSteps) + " in a section", "50");
  const auto num_sections = static_cast<double>(counts.size());
  for (size_t section = 0; section < counts.size(); ++section) {
    const auto n = static_cast<double>(counts[section]);
    for (int64_t i = 0; i < counts[section]; ++i) {
      const double t = (static_cast<double>(section) + static_cast<double>(i) / n) / num_sections;
      times.push_back(shift_time(t, config_.time_shift));
    }
  }
  times.push_back(1);
  return times;
}

bool Flow::has_final_velocity(bool clip_denoised) const {
  return !clip_denoised && gives_velocity(*config_.prediction, 1);
}

void Flow::velocity(double t, const float* x, const float* out, bool clip_denoised, float* v, int64_t n) const {
  const Prediction& prediction = *config_.prediction;
  if (!clip_denoised && gives_velocity(prediction, t)) {
    std::copy_n(out, n, v);
    return;
  }
  DITRAIN_CHECK(t < 1, "a time at which clean data tells the velocity");
  const CleanData clean(prediction.clean(level_at(t)));
  for (int64_t i = 0; i < n; ++i) v[i] = static_cast<float>((clean(x[i], out[i], clip_denoised) - x[i]) / (1 - t));
}

}  // namespace ditrain::diffusion
