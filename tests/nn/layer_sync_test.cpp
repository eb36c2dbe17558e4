// LayerSync: its value, whose gradient reaches the blocks up to the first of the two alone, and the same bits for any
// team.
#include "ditrain/nn/layer_sync.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/nn/model.hpp"
#include "small_model.hpp"
#include "support/message_of.hpp"
#include "support/random_tensor.hpp"

using namespace ditrain;
using namespace ditrain::test;

namespace {

constexpr int64_t kBatch = 4;
constexpr nn::LayerSync kSync{.weight = 3, .from = 1, .to = 2};

nn::ModelConfig small() {
  nn::ModelConfig c = small_model(4);
  c.input_width = 4;
  return c;
}

struct SyncRig : Rig {
  explicit SyncRig(const nn::PassOptions& pass_options, const Crew& crew = {})
      : Rig(small(), kBatch, pass_options, crew) {
    for (int64_t b = 0; b < kBatch; ++b) pass.t()[size_t(b)] = double(100 + 200 * b);
  }
  void run() { Rig::run(autograd::Gradients::kOverwrite); }
  /// The residual stream behind a block: what the next one keeps.
  std::vector<float> behind(int64_t block) {
    const std::string name = "blocks." + std::to_string(block + 1) + ".attn.x";
    for (const auto& node : pass.tape().nodes())
      for (const auto& a : node->kept())
        if (a->name == name) return to_vector(a->tensor);
    FAIL("no " << name);
    return {};
  }
};

/// Cosine of each token, in f64.
std::vector<double> cosines_of(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<double> cosines;
  const auto C = size_t(small().hidden_size);
  for (size_t row = 0; row < a.size() / C; ++row) {
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = row * C; i < (row + 1) * C; ++i)
      ab += double(a[i]) * b[i], aa += double(a[i]) * a[i], bb += double(b[i]) * b[i];
    cosines.push_back(ab / std::sqrt(aa * bb));
  }
  return cosines;
}

}  // namespace

TEST_CASE("LayerSync draws the first block's tokens towards the second's, which do not learn from it") {
  SyncRig with({.want_input_gradient = true, .layer_sync = kSync}), without({.want_input_gradient = true});
  with.run(), without.run();
  const std::vector<float> target = with.behind(kSync.to);
  const std::vector<double> cosines = cosines_of(with.behind(kSync.from), target);
  REQUIRE(with.pass.cosines().size() == cosines.size());
  for (size_t i = 0; i < cosines.size(); ++i) CHECK(with.pass.cosines()[i] == Approx(cosines[i]).epsilon(1e-12));
  const auto loss = [&] {  // of all samples, with the second block's tokens as they were
    with.pass.forward(with.ctx);
    double sum = 0;
    for (const double cosine : cosines_of(with.behind(kSync.from), target)) sum += cosine;
    return -kSync.weight * sum / double(small().tokens());
  };
  const auto check = [&](const Tensor& x, const Tensor& dx, const Tensor& dx_without, const std::string& name) {
    const Tensor direction = random_tensor(x.shape(), 11), x0 = clone(x);
    const auto at = [&](double step) {
      {
        const Pin<float> p(x), d(direction);
        for (int64_t i = 0; i < x.size(); ++i) p[i] += float(step * d[i]);
      }
      const double value = loss();
      copy(x0, x);
      return value;
    };
    constexpr double kStep = 1e-3;
    const double numeric = (at(kStep) - at(-kStep)) / (2 * kStep);
    const double analytic = dot(dx, direction) - dot(dx_without, direction);
    INFO(name << ": numeric " << numeric << ", analytic " << analytic);
    CHECK(std::fabs(numeric - analytic) <= 5e-3 * std::fabs(numeric) + 2e-3);
  };
  int64_t reached = 0;
  const auto all = with.model.parameters().state_dict(), others = without.model.parameters().state_dict();
  std::vector<Tensor> gradients;
  for (const auto* p : all) gradients.push_back(p->trainable ? clone(p->grad) : Tensor());
  const Tensor dimage = clone(with.pass.dimage());
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i]->trainable) continue;
    const std::string& name = all[i]->name;
    const bool later = name.starts_with("blocks.2.") || name.starts_with("blocks.3.") || name.starts_with("final");
    INFO(name);
    if (later) CHECK(to_vector(gradients[i]) == to_vector(others[i]->grad));
    if (later) continue;
    check(all[i]->value, gradients[i], others[i]->grad, name);
    ++reached;
  }
  CHECK(reached > 20);
  check(with.pass.image(), dimage, without.pass.dimage(), "image");
}

TEST_CASE("LayerSync has the same bits for any team and recomputation, and keeps nothing") {
  const DType precision = GENERATE(DType::kF32, DType::kBF16);
  nn::PassOptions options{.precision = precision, .layer_sync = nn::LayerSync{.weight = 1, .from = 0, .to = 3}};
  SyncRig one(options);
  one.run();
  for (const auto& [name, recompute] : nn::words_of(nn::Recompute{}))
    for (const auto& [workers, clusters] : {std::pair{3, 1}, {4, 2}}) {
      options.recompute = recompute;
      SyncRig other(options, {workers, clusters});
      other.run();
      INFO(dtype_name(precision) << ", " << name << ", " << workers << " workers in " << clusters << " clusters");
      CHECK(to_vector(other.model.parameters().grads) == to_vector(one.model.parameters().grads));
      CHECK(other.pass.cosines() == one.pass.cosines());
    }
  SyncRig without({.precision = precision});
  CHECK(one.pass.tape().kept_bytes() == without.pass.tape().kept_bytes());
  CHECK(one.pass.tape().temporary_bytes() == without.pass.tape().temporary_bytes());
}

TEST_CASE("a LayerSync that the model cannot have is refused with what to set") {
  const auto refusal = [](const nn::LayerSync& sync, const nn::ModelConfig& config, const nn::Routes& routes = {}) {
    return message_of([&] { nn::validate(sync, config, routes); }, "");
  };
  CHECK(refusal(kSync, small()).empty());
  CHECK(refusal({.from = 0, .to = 3}, small()).empty());
  for (const nn::LayerSync& bad :
       {nn::LayerSync{.from = 2, .to = 2}, {.from = 3, .to = 1}, {.from = 1, .to = 4}, {.from = -1, .to = 2}})
    CHECK_THAT(refusal(bad, small()), Catch::Contains("from before to, both from 0 to 3; try from: 1, to: 2"));
  CHECK_THAT(refusal(kSync, small(), {{0.5, 1, 1}}), Catch::Contains("one of train.layer_sync and train.routing"));
  nn::ModelConfig uvit = small();
  uvit.kind = nn::ModelKind::kUvit;
  CHECK_THAT(refusal(kSync, uvit), Catch::Contains("model.kind: uvit") && Catch::Contains("train.layer_sync: off"));
}
