// A training step of one rank: losses, gradients and weights.
#include "ditrain/train/train_step.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "ditrain/base/error.hpp"
#include "ditrain/diffusion/registry.hpp"
#include "small_run.hpp"

using namespace ditrain;
using namespace ditrain::test;
using namespace ditrain::train;

namespace {

struct Rig {
  enum class Gradients { kAll, kAsPlanned };
  explicit Rig(const config::Config& c, int workers = 1, Gradients gradients = Gradients::kAll)
      : config(c),
        model(c.model),
        team({.num_workers = workers}),
        ctx(team),
        plan(plan::plan_run(config, 1, {.cluster_sizes = team.cluster_sizes()})),
        step(make_step(gradients)) {}
  TrainStep make_step(Gradients gradients) {
    autograd::ParameterStore::Homes homes{.states = optim::state_arrays(config.optimizer, config.ema)};
    if (gradients == Gradients::kAsPlanned) homes.gradient_slices = plan.gradients.gradient_slices;
    model.parameters().allocate(autograd::ParameterStore::For::kTraining, config.train.precision, homes);
    copy(random_weights(model), model.parameters().values);
    return TrainStep(plan, model, {*comm}, ctx);
  }
  StepResult run() { return step.run(random_batch(config), progress); }

  config::Config config;
  std::unique_ptr<dist::Communicator> comm = dist::make_null_communicator();
  nn::Model model;
  parallel::Team team;
  ops::Context ctx;
  plan::RunPlan plan;
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
  config.train.recompute_of_blocks.assign(size_t(config.model.depth), nn::Recompute::kNone);  // and mixed
  config.train.recompute_of_blocks.front() = nn::Recompute::kBlock;
  config.train.recompute_of_blocks.back() = GENERATE(nn::Recompute::kNone, nn::Recompute::kSelective);
  Rig mixed(config, 2);
  CHECK(two_steps(mixed) == outcomes.front());
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

TEST_CASE("weights that change in backward have the bits of those that change at the end") {
  config::Config config = small_config();
  config.train.precision = GENERATE(DType::kF32, DType::kBF16);
  config.train.micro_batch = GENERATE(0, 2);
  config.model.num_classes = 7;  // no multiple of a vector: there is padding
  const int workers = GENERATE(1, 2);
  const auto run = [&](config::OnNonFinite on_non_finite, int64_t& gradients) {
    config.train.on_non_finite = on_non_finite;
    Rig rig(config, workers, Rig::Gradients::kAsPlanned);
    std::vector<std::vector<float>> states;
    for (int i = 0; i < 3; ++i) {
      const StepResult result = rig.run();
      CHECK(result.non_finite.empty());
      states.push_back({float(result.facts.loss), float(result.grad_norm)});
    }
    const autograd::ParameterStore& p = rig.model.parameters();
    gradients = p.grads.size();
    for (const Tensor* arena : {&p.values, &p.ema}) states.push_back(to_vector(*arena));
    for (const autograd::OptimizerState& state : p.states) states.push_back(to_vector(state.data));
    if (p.values_bf16.defined()) CHECK(is_rounded(p.values, p.values_bf16));
    return states;
  };
  int64_t all = 0, some = 0;
  const auto want = run(config::OnNonFinite::kSkip, all), got = run(config::OnNonFinite::kStop, some);
  CHECK(got == want);
  CHECK(all == int64_t(want[3].size()));
  CHECK((config.train.micro_batch == 0 ? some < all / 2 : some == all));
}

TEST_CASE("a gradient that is not finite stops the update in backward, by its name") {
  config::Config config = small_config();
  config.train.micro_batch = GENERATE(0, 2);
  Rig rig(config, 1, Rig::Gradients::kAsPlanned);
  autograd::ParameterStore& p = rig.model.parameters();
  SECTION("with the loss: nothing has changed") {
    dataset::Batch batch = random_batch(config);
    batch.images[0] = INFINITY;
    const std::vector<float> before = to_vector(p.values);
    CHECK(rig.step.run(batch, rig.progress).non_finite == "input image");
    CHECK(to_vector(p.values) == before);
    CHECK_FALSE(rig.step.weights_are_spoilt());
    CHECK(rig.run().non_finite.empty());
    CHECK(to_vector(p.values) != before);
  }
  SECTION("a later one: weights behind it have changed") {
    int64_t left = rig.plan.samples / rig.plan.micro_batch;  // micro-batches
    rig.step.tape().add_hook(autograd::HookPoint::kPreBackward, [&](const autograd::Node& node) {
      if (node.name() == "blocks.0.attn" && --left == 0) Pin<float>(p.find("blocks.0.attn.qkv.weight").value)[0] = NAN;
    });
    const StepResult result = rig.run();
    CHECK(result.non_finite.substr(0, 9) == "gradient ");
    CHECK(rig.step.weights_are_spoilt());
    CHECK_THROWS_AS(rig.run(), LogicFault);
  }
}

TEST_CASE("a finite gradient whose square would overflow counts as not finite, unless clipping makes it small") {
  config::Config config = flow_config();
  config.optimizer.kind = GENERATE(optim::Kind::kAdamW, optim::Kind::kMuon);
  dataset::Batch batch = random_batch(config);
  batch.images[5] = 1e30f;
  const auto states_are_finite = [](const autograd::ParameterStore& p) {
    return std::all_of(p.states.begin(), p.states.end(), [](const autograd::OptimizerState& state) {
      const std::vector<float> values = to_vector(state.data);
      return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
    });
  };
  SECTION("skipped: nothing changes, and the next step is one like others") {
    config.train.on_non_finite = config::OnNonFinite::kSkip;
    Rig rig(config);
    const autograd::ParameterStore& p = rig.model.parameters();
    const std::vector<float> before = to_vector(p.values);
    const StepResult result = rig.step.run(batch, rig.progress);
    CHECK(result.non_finite == "gradient norm (overflow)");
    CHECK(std::isfinite(result.facts.loss));
    CHECK((std::isfinite(result.grad_norm) && result.grad_norm > 1e20));
    CHECK(to_vector(p.values) == before);
    CHECK(rig.progress.skipped_steps == 1);
    CHECK(rig.run().non_finite.empty());
    CHECK(states_are_finite(p));
  }
  SECTION("stopped in backward, before a state has it") {
    config.train.micro_batch = GENERATE(0, 2);
    Rig rig(config, 1, Rig::Gradients::kAsPlanned);
    CHECK(rig.step.run(batch, rig.progress).non_finite == "gradient norm (overflow)");
    CHECK(states_are_finite(rig.model.parameters()));
  }
  SECTION("clipped") {
    config.optimizer.clip_norm = 1;
    config.train.on_non_finite = GENERATE(config::OnNonFinite::kSkip, config::OnNonFinite::kStop);
    Rig rig(config);
    const StepResult result = rig.step.run(batch, rig.progress);
    CHECK(result.non_finite.empty());
    CHECK(result.grad_norm > 1e20);
    CHECK(states_are_finite(rig.model.parameters()));
  }
}

TEST_CASE("gradients left from before have no part in a step") {
  config::Config config = small_config();
  config.train.micro_batch = GENERATE(0, 2);
  Rig clean(config), dirty(config);
  for (const autograd::Parameter* p : dirty.model.parameters().state_dict())
    if (p->trainable) copy(random_tensor(p->shape, 9, NAN), p->grad);
  const Outcome expected = two_steps(clean), got = two_steps(dirty);
  CHECK(got == expected);
}

TEST_CASE("routes are drawn anew for each sample and step, whatever the micro-batch and the team") {
  config::Config config = small_config();
  config.train.routing = {{0.5, 1, 1}};
  const auto steps = [&](const config::Config& c, int workers = 1) {
    Rig rig(c, workers);
    return two_steps(rig);
  };
  const Outcome whole = steps(config);
  CHECK(steps(config, 3) == whole);
  config::Config changed = config;
  changed.train.recompute = nn::Recompute::kBlock;
  CHECK(steps(changed) == whole);
  changed = config;
  changed.train.micro_batch = 1;
  const Outcome parts = steps(changed);
  CHECK(parts.losses[0] == whole.losses[0]);  // samples add up in the same order, whatever passes they are in
  CHECK(parts.losses[1] == Approx(whole.losses[1]).epsilon(1e-4));  // sums of gradients in another order
  changed.train.routing[0].ratio = 0.25;
  CHECK(steps(changed).losses[0] != whole.losses[0]);
  changed.train.routing.clear();
  CHECK(steps(changed).losses[0] != whole.losses[0]);
}

TEST_CASE("train.layer_sync: the loss is less by the mean cosine, and the step learns from it") {
  config::Config config = small_config();
  config.optimizer.lr = 1e-3;
  config.train.layer_sync = nn::LayerSync{.weight = 0.5, .from = 0, .to = 1};
  Rig with(config);
  config.train.micro_batch = 2;
  Rig parts(config);
  config.train.micro_batch = 0, config.train.layer_sync.reset();
  Rig without(config);
  const StepFacts a = with.run().facts, b = without.run().facts, c = parts.run().facts;
  CHECK(std::abs(a.layer_cosine) > 0.01);
  CHECK(std::abs(a.layer_cosine) <= 1);
  CHECK(a.loss == Approx(b.loss - 0.5 * a.layer_cosine).epsilon(1e-9));
  CHECK((a.mse == b.mse && b.layer_cosine == 0));
  CHECK(c.layer_cosine == Approx(a.layer_cosine).epsilon(1e-9));
  const Tensor &g = with.model.parameters().grads, &h = parts.model.parameters().grads;
  CHECK(dot(g, g) - 2 * dot(g, h) + dot(h, h) < 1e-10 * dot(g, g));
  config.train.layer_sync = nn::LayerSync{.weight = 1e-6, .from = 0, .to = 1};
  Rig hardly(config);
  hardly.run();
  StepFacts last, last_hardly;
  for (int i = 0; i < 10; ++i) last = with.run().facts, last_hardly = hardly.run().facts;
  CHECK(last.layer_cosine > last_hardly.layer_cosine);  // of the same samples, times and noise
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

TEST_CASE("conditions are dropped in training in all the combinations in which samples may be drawn") {
  nn::ModelConfig model{.num_classes = 4, .class_dropout = 0.1, .metadata = {"month", "year"}, .metadata_drop = 0.2};
  constexpr int kSamples = 20000;
  const auto shares = [&] {  // of samples with and without label (rows), with both, one and no number (columns)
    std::array<std::array<double, 3>, 2> share{};
    for (int i = 0; i < kSamples; ++i) {
      Condition condition{.label = 3, .numbers = {7, 2020}};
      drop_condition(model, RandomKey(1, Stream::kLabelDrop, 0, uint64_t(i)), condition);
      const bool dropped = condition.label == model.num_classes;
      CHECK((dropped || condition.label == 3));
      share[dropped][std::isnan(condition.numbers[0]) + std::isnan(condition.numbers[1])] += 1.0 / kSamples;
    }
    return share;
  };
  const auto expect = [](double got, double wanted) { CHECK(got == Approx(wanted).margin(0.01)); };
  const auto both = shares();
  expect(both[0][0], 0.9 * 0.8 * 0.64), expect(both[0][1], 0.9 * 0.8 * 0.32);
  expect(both[0][2], 0.9 * (0.2 + 0.8 * 0.04));
  expect(both[1][0], 0.1 * 0.5 * 0.64), expect(both[1][2], 0.1 * (0.5 + 0.5 * 0.04));
  model.metadata_drop = 0;
  const auto labels_alone = shares();
  expect(labels_alone[0][0], 0.9), expect(labels_alone[1][0], 0.1);
}
