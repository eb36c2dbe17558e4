// Processes from configs, and the walks over the samples of a batch.
#include "ditrain/diffusion/process.hpp"

#include <algorithm>

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

}  // namespace

void training_loss(const Process& process, const Shape& shape, const LossBatch& batch, double grad_weight, float* dout,
                   LossTerms* terms, int64_t begin, int64_t end) {
  const int64_t out = process.output_channels(shape.channels) * shape.pixels;
  for (int64_t i = begin; i < end; ++i) {
    LossSample sample = sample_of(process, shape, batch, i);
    sample.grad_weight = grad_weight;
    sample.dout = dout == nullptr ? nullptr : dout + i * out;
    terms[i] = process.loss(sample);
  }
}

void prediction_error(const Process& process, const Shape& shape, const LossBatch& batch, double* mse, int64_t begin,
                      int64_t end) {
  for (int64_t i = begin; i < end; ++i) mse[i] = process.mse(sample_of(process, shape, batch, i));
}

}  // namespace ditrain::diffusion
