#include "ditrain/optim/power_average.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "ditrain/optim/optimizer.hpp"
#include "support/random_tensor.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::test;

namespace {

// Weights along a training run: they fall towards a place, swing, and jitter as the steps do.
std::vector<double> weights_after(int64_t update, std::mt19937_64& random) {
  std::vector<double> w(40);
  std::normal_distribution<double> normal;
  for (size_t i = 0; i < w.size(); ++i)
    w[i] = std::exp(-double(update) / double(300 + 60 * i)) + std::sin(double(update) / double(200 + 40 * i)) +
           normal(random);
  return w;
}

struct Average {
  double exponent;
  std::vector<double> value = std::vector<double>(40);
  void add(int64_t update, const std::vector<double>& w) {
    const double share = optim::share_of_update(exponent, update - 1);
    for (size_t i = 0; i < w.size(); ++i) value[i] += share * (w[i] - value[i]);
  }
};

double norm(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("power averages: exponents of the widths of the paper, and the width of the shares") {
  CHECK(optim::exponent_of_width(0.05) == Approx(16.97).epsilon(1e-3));
  CHECK(optim::exponent_of_width(0.10) == Approx(6.94).epsilon(1e-3));
  CHECK(optim::tracked_averages().size() == 2);
  constexpr int64_t kUpdates = 20000;
  for (const double width : {0.01, 0.05, 0.1, 0.28}) {
    CAPTURE(width);
    const double exponent = optim::exponent_of_width(width);
    double weight = 1, sum = 0, first = 0, second = 0;  // of update t: its share, times what later ones leave of it
    for (int64_t t = kUpdates; t > 0; --t) {
      const double share = optim::share_of_update(exponent, t - 1), at = double(t) / kUpdates;
      sum += weight * share, first += weight * share * at, second += weight * share * at * at;
      weight *= 1 - share;
    }
    CHECK(sum == Approx(1));
    CHECK(weight == 0);  // the initial weights are forgotten
    CHECK(std::sqrt(second - first * first) == Approx(width).epsilon(0.01));
  }
}

TEST_CASE("power averages: an average of another width is solved from snapshots to 1 %") {
  constexpr int64_t kUpdates = 4000, kEvery = 250;
  std::mt19937_64 random(5);
  std::vector<Average> tracked, direct;
  for (const optim::TrackedAverage& average : optim::tracked_averages()) tracked.push_back({average.exponent});
  for (const double width : {0.03, 0.07, 0.15}) direct.push_back({optim::exponent_of_width(width)});
  std::vector<optim::AverageProfile> profiles;
  std::vector<std::vector<double>> stored;
  for (int64_t update = 1; update <= kUpdates; ++update) {
    const std::vector<double> w = weights_after(update, random);
    for (Average& average : tracked) average.add(update, w);
    for (Average& average : direct) average.add(update, w);
    if (update % kEvery != 0) continue;
    for (const Average& average : tracked)
      profiles.push_back({double(update), average.exponent}), stored.push_back(average.value);
  }
  for (const Average& wanted : direct) {
    CAPTURE(wanted.exponent);
    double error = 1;
    const std::vector<double> factors = optim::solve_average(profiles, {double(kUpdates), wanted.exponent}, &error);
    CHECK(error < 0.05);
    double of_one = 0;
    optim::solve_average({profiles.back()}, {double(kUpdates), wanted.exponent}, &of_one);
    CHECK(of_one > 0.1);
    std::vector<double> difference = wanted.value;
    for (size_t i = 0; i < stored.size(); ++i)
      for (size_t k = 0; k < difference.size(); ++k) difference[k] -= factors[i] * stored[i][k];
    CHECK(norm(difference) < 0.01 * norm(wanted.value));
  }
  // One that was stored is itself.
  const std::vector<double> factors = optim::solve_average(profiles, profiles.back());
  for (size_t i = 0; i < factors.size(); ++i) CHECK(factors[i] == Approx(i + 1 == factors.size() ? 1 : 0).margin(1e-6));
}

TEST_CASE("power averages: weights that never changed are their own average, however few snapshots there are") {
  std::vector<optim::AverageProfile> profiles;
  for (const double update : {1000.0, 2000.0, 3000.0, 4000.0})
    for (const optim::TrackedAverage& average : optim::tracked_averages())
      profiles.push_back({update, average.exponent});
  for (const double width : {0.05, 0.07, 0.12, 0.2, 0.25}) {
    CAPTURE(width);
    double sum = 0;
    for (const double factor : optim::solve_average(profiles, {4000, optim::exponent_of_width(width)})) sum += factor;
    CHECK(sum == Approx(1));
  }
}

TEST_CASE("power averages: an update adds the new weights, the same bits for any team and slices") {
  const optim::EmaConfig ema{.snapshots_every = 10};
  const auto states_after = [&](int workers, int64_t slice) {
    autograd::ParameterStore store;
    autograd::Parameter& p = store.add("w", {50, 70});
    store.allocate(autograd::ParameterStore::For::kTraining, DType::kF32, {.states = optim::state_arrays({}, ema)});
    copy(random_tensor(p.shape, 1), p.value);
    Workers crew(workers);
    std::vector<double> expected(size_t(p.size()));
    for (int64_t step = 0; step < 3; ++step) {
      copy(random_tensor(p.shape, uint64_t(10 + step)), p.grad);
      for (int64_t begin = 0; begin < store.arena_size(); begin += slice)
        optim::update(crew.ctx, {}, {.step = step, .lr = 0.1}, store,
                      {begin, std::min(begin + slice, store.arena_size())});
      const double share = optim::share_of_update(optim::tracked_averages()[0].exponent, step);
      const std::vector<float> now = to_vector(p.value);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += share * (double(now[i]) - expected[i]);
    }
    REQUIRE(store.states.size() == 4);
    std::vector<std::vector<float>> all{to_vector(store.states[2].data), to_vector(store.states[3].data)};
    for (size_t i = 0; i < expected.size(); ++i) CHECK(double(all[0][i]) == Approx(expected[i]).margin(1e-6));
    CHECK(all[0] != all[1]);
    return all;
  };
  const auto one = states_after(1, 4000);
  CHECK(states_after(3, 4000) == one);
  CHECK(states_after(2, 1024) == one);
}
