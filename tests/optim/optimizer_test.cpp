#include "ditrain/optim/optimizer.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "support/random_tensor.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::test;

TEST_CASE("learning rate: constant, warm-up and cosine") {
  optim::Config c;
  CHECK(optim::learning_rate(c, 0, 100) == 1e-4);
  CHECK(optim::learning_rate(c, 1000, 100) == 1e-4);
  c.warmup_steps = 10;
  CHECK(optim::learning_rate(c, 0, 100) == Approx(1e-5));
  CHECK(optim::learning_rate(c, 9, 100) == Approx(1e-4));
  CHECK(optim::learning_rate(c, 10, 100) == Approx(1e-4));
  c.schedule = optim::LrSchedule::kCosine, c.min_lr = 1e-6;
  CHECK(optim::learning_rate(c, 10, 110) == Approx(1e-4));
  CHECK(optim::learning_rate(c, 60, 110) == Approx((1e-4 + 1e-6) / 2));
  CHECK(optim::learning_rate(c, 110, 110) == Approx(1e-6));
  CHECK(optim::learning_rate(c, 500, 110) == Approx(1e-6));
}

TEST_CASE("learning rate of wsd: stable, then linear to its end over the last steps") {
  const optim::Config c{
      .lr = 1e-3, .schedule = optim::LrSchedule::kWsd, .warmup_steps = 10, .min_lr = 1e-5, .decay_share = 0.4};
  CHECK(optim::learning_rate(c, 0, 100) == Approx(1e-4));
  CHECK(optim::learning_rate(c, 10, 100) == 1e-3);
  CHECK(optim::learning_rate(c, 60, 100) == 1e-3);
  CHECK(optim::learning_rate(c, 61, 100) == Approx(1e-5 + (1e-3 - 1e-5) * 39 / 40));
  CHECK(optim::learning_rate(c, 80, 100) == Approx(1e-5 + (1e-3 - 1e-5) / 2));
  CHECK(optim::learning_rate(c, 100, 100) == Approx(1e-5));
  CHECK(optim::learning_rate(c, 500, 100) == Approx(1e-5));
}

TEST_CASE("EMA decay warms up to its value") {
  CHECK(optim::ema_decay({.decay = 0.9999, .warmup = false}, 0) == 0.9999);
  CHECK(optim::ema_decay({.decay = 0.999, .warmup = true}, 0) == Approx(0.1));
  CHECK(optim::ema_decay({.decay = 0.999, .warmup = true}, 90) == Approx(0.91));
  CHECK(optim::ema_decay({.decay = 0.999, .warmup = true}, 1000000) == 0.999);
}

TEST_CASE("the share of the first weights in the EMA is the product of the decays") {
  CHECK(optim::ema_share_of_start({.decay = 0.9999}, 0) == 1);
  CHECK(optim::ema_share_of_start({.decay = 0.9999}, 1000) == Approx(std::pow(0.9999, 1000)));
  CHECK(optim::ema_share_of_start({.decay = 0.5, .warmup = true}, 3) == Approx(0.1 * (2 / 11.0) * (3 / 12.0)));
  CHECK(optim::ema_share_of_start({.decay = 0.9999, .warmup = true}, int64_t{1} << 40) < 1e-6);
}

TEST_CASE("clipping limits the norm and is off at 0") {
  CHECK(optim::clip_factor(10, 0) == 1);
  CHECK(optim::clip_factor(0.5, 1) == 1);
  CHECK(optim::clip_factor(4, 1) == Approx(0.25));
}

TEST_CASE("a norm is too large for an update if what clipping leaves of it has a square that overflows") {
  CHECK_FALSE(optim::squares_overflow(1e17, 0));
  CHECK(optim::squares_overflow(1e18, 0));
  CHECK(optim::squares_overflow(1e300, 0));
  CHECK_FALSE(optim::squares_overflow(1e300, 1));
  CHECK(optim::squares_overflow(1e30, 1e20));
}

TEST_CASE("one update is AdamW then EMA, the same bits for any team") {
  on_teams([&](ops::Context& ctx) {
    autograd::ParameterStore store;
    store.add("a", {301, 17});
    store.add("b", {5});
    store.allocate(autograd::ParameterStore::For::kTraining, DType::kF32, {.states = optim::state_arrays()});
    copy(random_tensor({store.arena_size()}, 1), store.values);
    copy(store.values, store.ema);
    copy(random_tensor({store.arena_size()}, 2), store.grads);
    const optim::Config c{.lr = 0.1, .weight_decay = 0.01};
    const float p0 = to_vector(store.values)[7], g = 0.5f * to_vector(store.grads)[7];
    optim::adamw_ema_step(ctx, c, {.step = 0, .lr = 0.1, .ema_decay = 0.9, .grad_scale = 0.5}, store);
    std::vector<std::vector<float>> after{to_vector(store.values), to_vector(store.ema)};
    const double p = p0 * (1 - 0.1 * 0.01) - 0.1 * g / (std::fabs(g) + 1e-8);
    CHECK(after[0][7] == Approx(p).epsilon(1e-6));
    CHECK(after[1][7] == Approx(0.9 * p0 + 0.1 * p).epsilon(1e-6));
    return after;
  });
}

TEST_CASE("updates of slices, with states packed elsewhere, are the update of all, bit for bit") {
  constexpr int64_t kCut = 3331;
  const optim::Config c{.lr = 0.1, .weight_decay = 0.01};
  const optim::StepSettings settings{.step = 2, .lr = 0.1, .ema_decay = 0.9, .grad_scale = 0.5};
  std::vector<float> values, ema;
  for (const bool sliced : {false, true}) {
    autograd::ParameterStore store;
    store.add("a", {301, 17});
    const int64_t n = store.arena_size();
    autograd::ParameterStore::Homes homes{.states = optim::state_arrays()};
    if (sliced) homes.state_parts = {{kCut, n}, {0, kCut}};  // the states of the second slice lie first
    store.allocate(autograd::ParameterStore::For::kTraining, DType::kF32, homes);
    copy(random_tensor({n}, 1), store.values);
    copy(random_tensor({n}, 2), store.grads);
    Workers crew(2);
    for (int i = 0; i < 2; ++i) {
      if (!sliced) {
        optim::adamw_ema_step(crew.ctx, c, settings, store);
        continue;
      }
      optim::adamw_ema_step(crew.ctx, c, settings, store, {kCut, n});
      optim::adamw_ema_step(crew.ctx, c, settings, store, {0, kCut});
    }
    std::vector<float> states = to_vector(store.ema);
    if (sliced) std::rotate(states.begin(), states.begin() + (n - kCut), states.end());
    if (!sliced) values = to_vector(store.values), ema = states;
    CHECK(to_vector(store.values) == values);
    CHECK(states == ema);
  }
}

TEST_CASE("the gradient norm is over all gradients and shows what is not finite") {
  autograd::ParameterStore store;
  store.add("a", {3});
  store.add("b", {20});
  store.allocate(autograd::ParameterStore::For::kTraining);
  Workers crew;
  Pin<float>(store.find("a").grad)[0] = 3;
  Pin<float>(store.find("b").grad)[19] = 4;
  CHECK(optim::gradient_norm(crew.ctx, store) == Approx(5));
  Pin<float>(store.find("b").grad)[2] = NAN;
  CHECK(std::isnan(optim::gradient_norm(crew.ctx, store)));
  CHECK(store.at(store.find("b").slice.begin + 2).name == "b");
}
