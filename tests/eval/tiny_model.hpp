// A model small enough for tests, with random weights everywhere: a fresh one answers 0, whatever it is asked.
#pragma once
#include <memory>

#include "ditrain/base/random.hpp"
#include "ditrain/nn/model.hpp"

namespace ditrain::test {

inline nn::ModelConfig tiny_config() {
  nn::ModelConfig c;
  c.name = "custom";
  c.input_height = c.input_width = 32;
  c.in_channels = 3;
  c.patch_size = 8;
  c.hidden_size = 32;
  c.depth = 2;
  c.num_heads = 2;
  c.num_classes = 8;
  return c;
}

/// Fills all trainable weights of the arena with normal numbers.
inline void fill_random(autograd::ParameterStore& parameters, const Tensor& arena, uint64_t seed) {
  uint64_t number = 0;
  for (autograd::Parameter* p : parameters.state_dict()) {
    if (!p->trainable) continue;
    const Pin<float> values(parameters.view(arena, *p));
    RandomKey(seed, Stream::kTest, number++).fill_normal(values, p->size());
    for (int64_t i = 0; i < p->size(); ++i) values[i] *= 0.08f;
  }
}

inline std::unique_ptr<nn::Model> random_model(const nn::ModelConfig& config, uint64_t seed = 1) {
  auto model = std::make_unique<nn::Model>(config);
  model->parameters().allocate(autograd::ParameterStore::For::kInference);
  nn::initialise(*model, seed);
  fill_random(model->parameters(), model->parameters().values, seed);
  return model;
}

}  // namespace ditrain::test
