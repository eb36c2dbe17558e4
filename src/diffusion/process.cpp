// Processes from configs, and the walks over the samples of a batch.
#include "ditrain/diffusion/process.hpp"

#include <algorithm>
#include <vector>

#include "ditrain/base/error.hpp"
#include "ditrain/diffusion/registry.hpp"

namespace ditrain::diffusion {

const Prediction& prediction_of(const Config& config) {
  return *(config.prediction != nullptr ? config.prediction : config.process->predictions.front());
}

std::unique_ptr<Process> make_process(Config config, bool learn_sigma) {
  config.prediction = &prediction_of(config);
  const auto& known = config.process->predictions;
  if (std::find(known.begin(), known.end(), config.prediction) == known.end()) {
    std::vector<std::string> names;
    for (const Prediction* row : known) names.emplace_back(row->name);
    refuse("diffusion", "prediction does not fit process " + std::string(config.process->name),
           std::string(config.prediction->name), alternatives(names), "diffusion.prediction: " + names.front());
  }
  return config.process->make(config, learn_sigma);
}

void q_sample(const Process& process, const float* x0, const float* noise, const double* time, float* x_t,
              int64_t elements_per_sample, int64_t begin, int64_t end) {
  for (int64_t sample = begin; sample < end; ++sample) {
    const int64_t first = sample * elements_per_sample;
    process.add_noise(time[sample], x0 + first, noise + first, x_t + first, elements_per_sample);
  }
}

namespace {

LossSample sample_of(const Process& process, const Shape& shape, const LossBatch& batch, int64_t i) {
  const int64_t in = shape.elements(), out = process.output_channels(shape.channels) * shape.pixels;
  return {.shape = shape,
          .time = batch.time[i],
          .x0 = batch.x0 + i * in,
          .x_t = batch.x_t + i * in,
          .noise = batch.noise + i * in,
          .out = batch.model_out + i * out,
          .grad_weight = 0,
          .dout = nullptr};
}

// f(sample), for a sample that has some pixels without data: of the others moved together, with their gradient moved
// back.
template <class F>
auto of_valid_pixels(const LossSample& sample, int64_t output_channels, const Condition* condition, const F& f)
    -> decltype(f(sample)) {
  if (condition == nullptr || condition->valid.empty()) return f(sample);
  std::vector<int64_t> pixels;
  for (int64_t p = 0; p < sample.shape.pixels; ++p)
    if (condition->valid[size_t(p)] != 0) pixels.push_back(p);
  const auto gather = [&](const float* from, int64_t channels) {
    std::vector<float> to;
    for (int64_t c = 0; c < channels; ++c)
      for (const int64_t p : pixels) to.push_back(from[c * sample.shape.pixels + p]);
    return to;
  };
  const int64_t channels = sample.shape.channels;
  const std::vector<float> x0 = gather(sample.x0, channels), x_t = gather(sample.x_t, channels),
                           noise = gather(sample.noise, channels), out = gather(sample.out, output_channels);
  std::vector<float> dout(out.size());
  LossSample valid = sample;
  valid.shape.pixels = int64_t(pixels.size());
  valid.x0 = x0.data(), valid.x_t = x_t.data(), valid.noise = noise.data(), valid.out = out.data();
  valid.dout = sample.dout == nullptr ? nullptr : dout.data();
  if (sample.dout != nullptr) std::fill_n(sample.dout, output_channels * sample.shape.pixels, 0.0f);
  if (pixels.empty()) return {};
  const auto result = f(valid);
  for (int64_t c = 0; sample.dout != nullptr && c < output_channels; ++c)
    for (size_t k = 0; k < pixels.size(); ++k)
      sample.dout[c * sample.shape.pixels + pixels[k]] = dout[size_t(c) * pixels.size() + k];
  return result;
}

const Condition* condition_of(const LossBatch& batch, int64_t i) {
  return batch.conditions == nullptr ? nullptr : batch.conditions + i;
}

}  // namespace

void training_loss(const Process& process, const Shape& shape, const LossBatch& batch, double grad_weight, float* dout,
                   LossTerms* terms, int64_t begin, int64_t end) {
  const int64_t out = process.output_channels(shape.channels) * shape.pixels;
  for (int64_t i = begin; i < end; ++i) {
    LossSample sample = sample_of(process, shape, batch, i);
    sample.grad_weight = grad_weight;
    sample.dout = dout == nullptr ? nullptr : dout + i * out;
    terms[i] = of_valid_pixels(sample, process.output_channels(shape.channels), condition_of(batch, i),
                               [&](const LossSample& s) { return process.loss(s); });
  }
}

void prediction_error(const Process& process, const Shape& shape, const LossBatch& batch, double* mse, int64_t begin,
                      int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    mse[i] = of_valid_pixels(sample_of(process, shape, batch, i), process.output_channels(shape.channels),
                             condition_of(batch, i), [&](const LossSample& s) { return process.mse(s); });
}

}  // namespace ditrain::diffusion
