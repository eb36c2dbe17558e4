// A model small enough for tests, with random weights everywhere: a fresh one answers 0, whatever it is asked.
#pragma once
#include <memory>

#include "ditrain/base/random.hpp"
#include "ditrain/kernels/elementwise.hpp"
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

/// The same weights in either precision; with kBF16 their rounded copies are there too.
inline std::unique_ptr<nn::Model> random_model(const nn::ModelConfig& config, uint64_t seed = 1,
                                               DType precision = DType::kF32) {
  auto model = std::make_unique<nn::Model>(config);
  autograd::ParameterStore& p = model->parameters();
  p.allocate(autograd::ParameterStore::For::kInference, precision);
  nn::initialise(*model, seed);
  fill_random(p, p.values, seed);
  if (precision == DType::kBF16)
    kernels::convert(Pin<float>(p.values).get(), Pin<BFloat16>(p.values_bf16).get(), p.arena_size());
  return model;
}

}  // namespace ditrain::test
