// Random operands of a product, for the benches that call one by itself.
#pragma once
#include <vector>

#include "ditrain/bench/arrays.hpp"
#include "ditrain/bench/gemm.hpp"

namespace ditrain::bench {

/// The operands of one product; `next` goes round the copies of the weight, which is c in a weight gradient, else b.
class Operands {
 public:
  Operands(ops::Context& ctx, const ProductShape& shape, const ProductTypes& types, int64_t copies = 1,
           PackingOfB packing = PackingOfB::kTimed)
      : shape_(shape), types_(types) {
    for (int64_t i = 0; i < copies; ++i) {
      const bool first = i == 0;
      if (first) a_ = random_tensor(ctx, {shape.m, shape.k}, -0.5f, 0.5f, types.a);
      if (first || !shape.accumulates()) b_.push_back(random_tensor(ctx, {shape.k, shape.n}, -0.5f, 0.5f, types.b));
      if (first || shape.accumulates()) c_.push_back(random_tensor(ctx, {shape.m, shape.n}, -0.5f, 0.5f, types.c));
    }
    if (packing == PackingOfB::kBefore) pack();
  }

  /// Their memory stays in place during f(args).
  template <class F>
  void with_next(const F& f) {
    const Tensor& b = b_[size_t(turn_) % b_.size()];
    const Tensor& c = c_[size_t(turn_) % c_.size()];
    ++turn_;
    const Pin<void> a_held(a_), b_held(b), c_held(c);
    kernels::GemmArgs g = args_of(shape_, types_, a_held, b_held, c_held);
    if (!panels_.defined()) return f(g);
    const Pin<float> panels(panels_);
    g.packed_b = {.panels = panels, .columns = g.n};
    f(g);
  }

  /// One pass over the next weight: read, or updated where the product adds to it.
  void stream_weight(Harness& harness) {
    with_next([&](const kernels::GemmArgs& g) {
      const bool update = shape_.accumulates();
      auto* weight = static_cast<float*>(update ? g.c : const_cast<void*>(g.b));
      harness.stream({.reads = !update, .updates = update}, {weight}, int64_t(weight_bytes() / sizeof(float)));
    });
  }
  size_t weight_bytes() const { return (shape_.accumulates() ? c_ : b_).front().bytes(); }

 private:
  void pack() {
    const Tensor panels({int64_t(kernels::packed_b_bytes(shape_.k, shape_.n, types_.arithmetic) / sizeof(float))});
    with_next([&](const kernels::GemmArgs& g) { kernels::pack_b(g, Pin<float>(panels)); });
    panels_ = panels;
  }

  const ProductShape shape_;
  const ProductTypes types_;
  Tensor a_, panels_;
  std::vector<Tensor> b_, c_;
  int64_t turn_ = 0;
};

}  // namespace ditrain::bench
