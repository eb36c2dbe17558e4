#include "ditrain/kernels/elementwise.hpp"
#include "kernel_test_utils.hpp"

using namespace ditrain::kernels;

namespace {

AdamWStep step_number(int k) {
  AdamWStep s;
  s.lr = 1e-2, s.weight_decay = 0.1, s.ema_decay = 0.99, s.grad_scale = 0.5;
  s.bias1 = 1 - std::pow(s.beta1, k), s.bias2 = 1 - std::pow(s.beta2, k);
  return s;
}

struct State {
  Guarded p, m, v, ema;
  explicit State(int64_t n)
      : p(random_values(n, 121)),
        m(std::vector<float>(static_cast<size_t>(n))),
        v(std::vector<float>(static_cast<size_t>(n))),
        ema(random_values(n, 122)) {}
};

}  // namespace

TEST_CASE("adamw with ema follows the reference over steps") {
  constexpr int kSteps = 20;
  for (const ElementwiseKernels* table : usable_elementwise()) {
    for (int64_t n : {1, 3, 8, 16, 17, 64, 101}) {
      INFO(table->name << " n " << n);
      State fast(n), slow(n);
      for (int k = 1; k <= kSteps; ++k) {
        const std::vector<float> g = random_values(n, 200 + static_cast<uint64_t>(k));
        table->adamw_ema(step_number(k), g.data(), fast.p.data(), fast.m.data(), fast.v.data(), fast.ema.data(),
                         nullptr, n);
        ref::adamw_ema(step_number(k), g.data(), slow.p.data(), slow.m.data(), slow.v.data(), slow.ema.data(), nullptr,
                       n);
      }
      CHECK(difference(fast.p.values(), slow.p.values(), tolerance(kSteps)) == "");
      CHECK(difference(fast.m.values(), slow.m.values(), tolerance(kSteps, 0.5)) == "");
      CHECK(difference(fast.v.values(), slow.v.values(), tolerance(kSteps, 0.01)) == "");
      CHECK(difference(fast.ema.values(), slow.ema.values(), tolerance(kSteps)) == "");
      CHECK((fast.p.zones_untouched() && fast.m.zones_untouched() && fast.v.zones_untouched() &&
             fast.ema.zones_untouched()));
    }
  }
}

TEST_CASE("the average of many noisy weights is not biased") {
  constexpr int64_t kSize = 20;
  AdamWStep still = step_number(1);
  still.lr = 0, still.weight_decay = 0, still.ema_decay = 0.9999;
  const std::vector<float> noise = random_values(1 << 16, 141, 0.5f);
  for (const ElementwiseKernels* table : usable_elementwise()) {
    INFO(table->name);
    std::vector<float> g(kSize), m(kSize), v(kSize), p(kSize), ema(kSize, 1.0f);
    std::vector<double> exact(kSize, 1.0);
    for (size_t step = 0; step < 20000; ++step) {
      for (size_t i = 0; i < p.size(); ++i) {
        p[i] = 1 + noise[(step * 31 + i) % noise.size()];
        exact[i] += (1 - still.ema_decay) * (double(p[i]) - exact[i]);
      }
      table->adamw_ema(still, g.data(), p.data(), m.data(), v.data(), ema.data(), nullptr, kSize);
    }
    // Roundings of 2^-24 at random over 1 / (1 - decay) steps: 2^-24 sqrt(1e4) = 6e-6; the bias would be 1.4e-4.
    for (size_t i = 0; i < ema.size(); ++i) CHECK(std::abs(ema[i] - exact[i]) < 2e-5);
  }
}
