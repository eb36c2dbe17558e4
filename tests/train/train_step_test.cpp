// A training step of one rank: losses, gradients and weights.
#include "ditrain/train/train_step.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "ditrain/diffusion/registry.hpp"
#include "small_run.hpp"

using namespace ditrain;
using namespace ditrain::test;
using namespace ditrain::train;

namespace {

struct Rig {
  explicit Rig(const config::Config& c, int workers = 1)
      : config(c),
        model(c.model),
        team({.num_workers = workers}),
        ctx(team),
        step(plan::plan_run(config, 1, {.cluster_sizes = team.cluster_sizes()}), model, *comm, ctx) {
    model.parameters().allocate(autograd::ParameterStore::For::kTraining, config.train.precision);
    copy(random_tensor({model.parameters().arena_size()}, 5, 0.1f), model.parameters().values);
    step.allocate();
  }
  StepResult run() { return step.run(random_batch(config), progress); }

  config::Config config;
  std::unique_ptr<dist::Communicator> comm = dist::make_null_communicator();
  nn::Dit model;
  parallel::Team team;
  ops::Context ctx;
  TrainStep step;
  Progress progress;
};

/// What two steps leave behind: losses, then gradients of the second and weights.
struct Outcome {
  std::vector<double> losses;
  std::vector<float> grads, values;
  bool operator==(const Outcome&) const = default;
};
Outcome two_steps(Rig& rig) {
  Outcome o;
  for (int i = 0; i < 2; ++i) o.losses.push_back(rig.run().facts.loss);
  o.grads = to_vector(rig.model.parameters().grads), o.values = to_vector(rig.model.parameters().values);
  return o;
}

}  // namespace

TEST_CASE("every process trains with each of its predictions, at times that its model knows") {
  std::set<double> losses;
  for (const auto& kind : rows_of(static_cast<const diffusion::ProcessKind*>(nullptr)))
    for (const diffusion::Prediction* prediction : kind.predictions) {
      INFO(kind.name << ' ' << prediction->name);
      config::Config config = small_config();
      config.model.learn_sigma = false;
      config.diffusion.process = &kind, config.diffusion.prediction = prediction;
      config.optimizer.lr = 3e-3;
      Rig rig(config);
      double early = 0, late = 0;
      for (int i = 0; i < 60; ++i) {
        const StepResult result = rig.run();
        CHECK(result.non_finite.empty());
        CHECK(result.facts.vb == 0);
        if (i == 0) CHECK(losses.insert(result.facts.loss).second);
        if (i < 20) early += result.facts.mse;
        if (i >= 40) late += result.facts.mse;
      }
      CHECK(late < 0.97 * early);  // of one batch, seen again and again
    }
  CHECK(losses.size() >= 5);
}

TEST_CASE("train.recompute changes no bit of losses, gradients and weights") {
  config::Config config = small_config();
  config.train.micro_batch = GENERATE(0, 2);
  std::vector<Outcome> outcomes;
  for (const auto& [word, mode] : nn::words_of(nn::Recompute{}))
    for (int workers : {1, 2, 3}) {
      config.train.recompute = mode;
      Rig rig(config, workers);
      outcomes.push_back(two_steps(rig));
      INFO(word << ", " << workers << " workers");
      CHECK(outcomes.back() == outcomes.front());
    }
  CHECK(outcomes.front().losses[0] != outcomes.front().losses[1]);
}

TEST_CASE("in bf16 the copy of the weights follows them: from the first step on, and over steps that are skipped") {
  config::Config config = small_config();
  config.train.precision = DType::kBF16;
  Rig rig(config, 2);
  const Tensor &values = rig.model.parameters().values, &bf16 = rig.model.parameters().values_bf16;
  const auto copy_is_right = [&] {
    const Tensor want({values.size()}, DType::kBF16), a({values.size()}), b({values.size()});
    copy(values, want);
    copy(want, a), copy(bf16, b);
    return to_vector(a) == to_vector(b);
  };
  CHECK_FALSE(copy_is_right());  // of weights that were loaded
  for (int i = 0; i < 3; ++i) {
    const std::vector<float> before = to_vector(values);
    CHECK(rig.run().non_finite.empty());
    CHECK(to_vector(values) != before);
    CHECK(copy_is_right());
  }
  dataset::Batch bad = random_batch(config);
  bad.images[0] = INFINITY;
  const std::vector<float> before = to_vector(values);
  CHECK(rig.step.run(bad, rig.progress).non_finite == "input image");
  CHECK(to_vector(values) == before);
  CHECK(copy_is_right());
}

TEST_CASE("a step in bf16 has the losses of one in f32 but for roundings, and the same bits for any team") {
  config::Config config = small_config();
  Rig f32(config);
  config.train.precision = DType::kBF16;
  Rig one(config), three(config, 3);
  const Outcome want = two_steps(f32), got = two_steps(one);
  CHECK(two_steps(three) == got);
  for (int i : {0, 1}) CHECK(got.losses[size_t(i)] == Approx(want.losses[size_t(i)]).epsilon(1e-2));
  CHECK(got.losses != want.losses);
}

TEST_CASE("gradients left from before have no part in a step") {
  config::Config config = small_config();
  config.train.micro_batch = GENERATE(0, 2);
  Rig clean(config), dirty(config);
  for (const autograd::Parameter* p : dirty.model.parameters().state_dict())
    if (p->trainable) copy(random_tensor(p->shape, 9, NAN), p->grad);
  const Outcome expected = two_steps(clean), got = two_steps(dirty);
  CHECK(got == expected);
  CHECK(got.grads == got.grads);  // no NaN
}

TEST_CASE("the gradient of two micro-batches is that of all samples at once, up to rounding") {
  config::Config config = small_config();
  Rig whole(config);
  config.train.micro_batch = 2;
  Rig parts(config);
  whole.run(), parts.run();
  const Tensor &a = whole.model.parameters().grads, &b = parts.model.parameters().grads;
  const double aa = dot(a, a), ab = dot(a, b), bb = dot(b, b);
  CHECK(aa - 2 * ab + bb < 1e-10 * aa);
  CHECK(aa > 0);
}
