// A model that is small in every respect, and its loss as tests of gradients by differences need it.
#pragma once
#include "ditrain/nn/model.hpp"
#include "support/random_tensor.hpp"

namespace ditrain::test {

inline nn::ModelConfig small_model(int64_t depth) {
  nn::ModelConfig c;
  c.name = "custom";
  c.input_height = 8, c.input_width = 12, c.in_channels = 3, c.patch_size = 2;
  c.hidden_size = 32, c.depth = depth, c.num_heads = 4, c.num_classes = 5;
  return c;
}

/// sum(out dout) where x, a tensor of the rig's pass, is x + step direction for the time of a forward pass.
template <class Rig>
double loss_along(Rig& rig, const Tensor& dout, const Tensor& x, const Tensor& direction, double step) {
  const Tensor x0 = clone(x);
  {
    const Pin<float> p(x), d(direction);
    for (int64_t i = 0; i < x.size(); ++i) p[i] += float(step * d[i]);
  }
  rig.pass.forward(rig.ctx);
  copy(x0, x);
  return dot(rig.pass.out(), dout);
}

}  // namespace ditrain::test
