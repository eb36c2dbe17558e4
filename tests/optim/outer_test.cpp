// The outer optimiser against its published rules in f64, for groups that each move their weights in their own way.
#include "ditrain/optim/outer.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <memory>

#include "ditrain/optim/optimizer.hpp"
#include "support/random_tensor.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::test;
using autograd::ParameterStore;

namespace {

constexpr int kGroups = 3, kPhases = 7, kElements = 40;

struct Group {
  Group(const optim::OuterConfig& config, ops::Context& context) : ctx(context) {
    store.add("w", {kElements});
    store.allocate(ParameterStore::For::kTraining, DType::kF32, {.states = optim::state_arrays()});
    copy(random_tensor({kElements}, 1), store.find("w").value);
    copy(random_tensor({kElements}, 1), store.view(store.ema, store.find("w")));
    outer = std::make_unique<optim::OuterOptimizer>(config, kGroups, store, memory::system_memory());
    outer->begin(ctx);
  }
  /// A phase of training, which depends on the weights that it begins with.
  void train(int group, int phase) {
    const std::vector<float> noise = to_vector(random_tensor({kElements}, uint64_t(100 * group + phase)));
    const Pin<float> w(store.values);
    for (int i = 0; i < kElements; ++i) w.get()[i] += 0.1f * (noise[size_t(i)] - w.get()[i]);
  }
  ops::Context& ctx;
  ParameterStore store;
  std::unique_ptr<optim::OuterOptimizer> outer;
};

// What all ranks get.
void sum(std::vector<std::unique_ptr<Group>>& groups) {
  std::vector<float> total(size_t(groups[0]->outer->gradient().size()), 0.0f);
  for (const auto& group : groups) {
    const std::vector<float> mine = to_vector(group->outer->gradient());
    for (size_t i = 0; i < total.size(); ++i) total[i] += mine[i];
  }
  for (const auto& group : groups) std::copy(total.begin(), total.end(), Pin<float>(group->outer->gradient()).get());
}

std::vector<std::unique_ptr<Group>> run(const optim::OuterConfig& config, ops::Context& ctx, int phases) {
  std::vector<std::unique_ptr<Group>> groups;
  for (int g = 0; g < kGroups; ++g) groups.push_back(std::make_unique<Group>(config, ctx));
  const auto all = [&](auto f) {
    for (int g = 0; g < kGroups; ++g) f(*groups[size_t(g)], g);
  };
  for (int phase = 0; phase < phases; ++phase) {
    all([&](Group& group, int g) { group.train(g, phase); });
    if (config.overlap) {  // what was on its way since the phase before has arrived
      all([&](Group& group, int) { group.outer->apply(ctx, 0.5); });
      all([&](Group& group, int) { group.outer->take_gradient(ctx); });
      sum(groups);
    } else {
      all([&](Group& group, int) { group.outer->take_gradient(ctx); });
      sum(groups);
      all([&](Group& group, int) { group.outer->apply(ctx, 0.5); });
    }
  }
  return groups;
}

using Vector = std::vector<double>;

/// Each group has an outer optimiser of its own, as in the papers.
std::vector<Vector> published(const optim::OuterConfig& config, int phases, Vector* mean_of_ema) {
  const std::vector<float> first = to_vector(random_tensor({kElements}, 1));
  std::vector<Vector> theta(kGroups, Vector(first.begin(), first.end())), b(kGroups, Vector(kElements, 0.0)),
      own_before(kGroups, Vector(kElements, 0.0));
  Vector mean_before(kElements, 0.0), ema = theta[0];
  for (int phase = 0; phase < phases; ++phase) {
    std::vector<Vector> own(kGroups, Vector(kElements));
    Vector mean(kElements, 0.0);
    for (int g = 0; g < kGroups; ++g) {
      const std::vector<float> noise = to_vector(random_tensor({kElements}, uint64_t(100 * g + phase)));
      for (size_t i = 0; i < kElements; ++i) {
        const double w = theta[size_t(g)][i] + 0.1 * (double(noise[i]) - theta[size_t(g)][i]);
        own[size_t(g)][i] = theta[size_t(g)][i] - w;
        mean[i] += own[size_t(g)][i] / kGroups;
      }
    }
    for (size_t g = 0; g < kGroups; ++g)
      for (size_t i = 0; i < kElements; ++i) {
        const double d = config.overlap ? mean_before[i] + (own[g][i] - own_before[g][i]) / kGroups : mean[i];
        b[g][i] = config.momentum * b[g][i] + d;
        theta[g][i] -= config.lr * (d + config.momentum * b[g][i]);
      }
    own_before = own, mean_before = mean;
    for (size_t i = 0; i < kElements; ++i) ema[i] += 0.5 * (theta[0][i] - ema[i]);
  }
  if (mean_of_ema != nullptr) *mean_of_ema = ema;
  return theta;
}

double largest_difference(const std::vector<float>& a, const Vector& b) {
  double most = 0;
  for (size_t i = 0; i < b.size(); ++i) most = std::max(most, std::fabs(double(a[i]) - b[i]));
  return most;
}

}  // namespace

TEST_CASE("outer steps are SGD with Nesterov momentum on the mean of what groups learned") {
  Workers crew(2);
  const optim::OuterConfig config{.momentum = 0.8, .groups = kGroups};
  Vector ema;
  const std::vector<Vector> want = published(config, kPhases, &ema);
  const auto groups = run(config, crew.ctx, kPhases);
  for (const auto& group : groups) {
    CHECK(largest_difference(to_vector(group->store.values), want[0]) < 1e-5);
    CHECK(largest_difference(to_vector(group->store.ema), ema) < 1e-5);
    CHECK(to_vector(group->store.values) == to_vector(groups[0]->store.values));
  }
  CHECK(largest_difference(to_vector(groups[0]->store.values), published(config, kPhases - 1, nullptr)[0]) > 1e-2);
}

TEST_CASE("eager outer steps give every group the weights of the published rule, and the run one state") {
  Workers crew(2);
  const optim::OuterConfig config{.momentum = 0.8, .overlap = true, .groups = kGroups};
  const std::vector<Vector> want = published(config, kPhases, nullptr);
  const auto groups = run(config, crew.ctx, kPhases);
  for (size_t g = 0; g < kGroups; ++g) {
    const autograd::ParameterStore& store = groups[g]->store;
    CHECK(largest_difference(to_vector(store.values), want[g]) < 1e-5);
    CHECK(to_vector(store.published) == to_vector(groups[0]->store.published));
    CHECK(to_vector(store.ema) == to_vector(groups[0]->store.ema));
    CHECK(to_vector(store.state("outer_momentum").data) == to_vector(groups[0]->store.state("outer_momentum").data));
    CHECK((g == 0 || to_vector(store.values) != to_vector(groups[0]->store.values)));
  }
}

TEST_CASE("with lr 1 and no momentum the new weights are the mean of those of the groups") {
  Workers crew;
  const auto groups = run({.lr = 1, .momentum = 0, .groups = kGroups}, crew.ctx, 1);
  Vector mean(kElements, 0.0);
  for (int g = 0; g < kGroups; ++g) {
    Group alone({.groups = kGroups}, crew.ctx);
    alone.train(g, 0);
    const std::vector<float> local = to_vector(alone.store.find("w").value);
    for (size_t i = 0; i < kElements; ++i) mean[i] += double(local[i]) / kGroups;
  }
  CHECK(largest_difference(to_vector(groups[0]->store.values), mean) < 1e-6);
}
