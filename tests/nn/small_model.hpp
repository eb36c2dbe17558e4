// A model that is small in every respect, what a pass of it leaves behind, and its gradients held against differences.
#pragma once
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "ditrain/nn/model.hpp"
#include "ditrain/nn/tensor_parallel.hpp"
#include "support/random_tensor.hpp"

namespace ditrain::test {

inline nn::ModelConfig small_model(int64_t depth) {
  nn::ModelConfig c;
  c.name = "custom";
  c.input_height = 8, c.input_width = 12, c.in_channels = 3, c.patch_size = 2;
  c.hidden_size = 32, c.depth = depth, c.num_heads = 4, c.num_classes = 5;
  return c;
}

/// The same with all variants of a block.
inline nn::ModelConfig with_block_variants(nn::ModelConfig c) {
  c.qk_norm = nn::QkNorm::kLayer, c.norm = nn::Norm::kRms;
  c.mlp = nn::Mlp::kSwiglu, c.position = nn::Position::kRope;
  return c;
}

struct Crew {
  int workers = 1, clusters = 1;
  ops::ClusterSplit cut = ops::ClusterSplit::kSamples;
};

/// Output and gradients of a pass; dimage is empty where PassOptions do not ask for it.
struct Outcome {
  std::vector<float> out, grads, dimage;
  bool operator==(const Outcome&) const = default;
};

/// A pass of a model whose trainable weights are all random, also those that start at 0, so that every gradient is
/// there; its image, times and labels differ from sample to sample.
struct Rig {
  explicit Rig(const nn::ModelConfig& config, int64_t batch = 2, const nn::PassOptions& pass_options = kWithDimage,
               const Crew& crew = {}, autograd::Mode mode = autograd::Mode::kTraining,
               const nn::TensorParallel& tensor = {})
      : options(pass_options),
        model(config, tensor),
        team({.num_workers = crew.workers, .num_clusters = crew.clusters}),
        ctx(team, crew.cut),
        pass(model, batch, mode, options) {
    autograd::ParameterStore& parameters = model.parameters();
    parameters.allocate(autograd::ParameterStore::For::kTraining, options.precision);
    nn::initialise(model, 1);
    randomise();
    pass.allocate();
    copy(random_tensor(pass.image().shape(), 2), pass.image());
    for (int64_t b = 0; b < batch; ++b) {
      pass.t()[size_t(b)] = double(100 + 300 * b);
      pass.conditions()[size_t(b)].label = config.num_classes > 0 ? b % (config.num_classes + 1) : 0;
    }
  }
  void randomise(float deviation = 0.15f) {
    copy(random_tensor({model.parameters().arena_size()}, 5, deviation), model.parameters().values);
    round_weights();
  }
  void round_weights() {
    if (options.precision == DType::kBF16) copy(model.parameters().values, model.parameters().values_bf16);
  }
  /// Of sum(out dout); kAdd adds to zeros.
  void backward(const Tensor& dout, autograd::Gradients gradients = autograd::Gradients::kAdd) {
    copy(dout, pass.dout());
    if (gradients == autograd::Gradients::kAdd) fill_zero(model.parameters().grads);
    pass.backward(ctx, gradients);
  }
  Outcome run(autograd::Gradients gradients = autograd::Gradients::kAdd) {
    pass.forward(ctx);
    const std::vector<float> out = to_vector(pass.out());
    backward(random_tensor(pass.out().shape(), 7), gradients);
    return {out, to_vector(model.parameters().grads),
            options.want_input_gradient ? to_vector(pass.dimage()) : std::vector<float>()};
  }

  inline static const nn::PassOptions kWithDimage{.want_input_gradient = true};
  nn::PassOptions options;
  nn::Model model;
  parallel::Team team;
  ops::Context ctx;
  nn::ModelPass pass;
};

/// Gradients of the image and of all parameters, by central differences along one direction each.
inline void check_gradients(Rig& rig) {
  const Tensor dout = random_tensor(rig.pass.out().shape(), 7);
  rig.run();
  const auto check = [&](const Tensor& x, const Tensor& dx, const std::string& name) {
    const Tensor direction = random_tensor(x.shape(), 11), x0 = clone(x);
    const auto loss_at = [&](double step) {
      {
        const Pin<float> p(x), d(direction);
        for (int64_t i = 0; i < x.size(); ++i) p[i] += float(step * d[i]);
      }
      rig.pass.forward(rig.ctx);
      copy(x0, x);
      return dot(rig.pass.out(), dout);
    };
    const bool weak = name.find("_norm.") != std::string::npos;  // outputs hardly change: rounding would drown it
    const double h = weak ? 2e-2 : 2e-3;
    const double numeric = (loss_at(h) - loss_at(-h)) / (2 * h);
    const double analytic = dot(dx, direction), size = std::sqrt(dot(dx, dx) * dot(direction, direction));
    INFO(name << ": numeric " << numeric << ", analytic " << analytic << ", |dx| |direction| " << size);
    CHECK(std::fabs(numeric - analytic) <= 5e-3 * std::fabs(analytic) + 2e-3 * size + 1e-3);
  };
  check(rig.pass.image(), clone(rig.pass.dimage()), "image");
  for (autograd::Parameter* p : rig.model.parameters().state_dict())
    if (p->trainable) check(p->value, clone(p->grad), p->name);
}

}  // namespace ditrain::test
