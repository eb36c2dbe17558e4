// Token routing: which tokens stay, what blocks then see, keep and compute, and the gradients. tests/verify compares a
// routed model with the public implementation (fixture tread).
#include "ditrain/nn/routing.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <optional>

#include "ditrain/base/error.hpp"
#include "ditrain/nn/model.hpp"
#include "small_model.hpp"
#include "support/compare.hpp"
#include "support/message_of.hpp"
#include "support/random_tensor.hpp"

using namespace ditrain;
using namespace ditrain::test;
using autograd::Mode;

namespace {

nn::ModelConfig small() { return small_model(5); }
nn::ModelConfig small_variant() { return with_block_variants(small()); }
const nn::Routes kInside{{0.5, 1, 3}}, kFromTheFirst{{0.3, 0, 1}, {0.75, 2, 3}}, kToTheLast{{0.6, 1, 1}, {0.25, 3, 4}};

struct RoutedRig : Rig {
  explicit RoutedRig(const nn::ModelConfig& config, const nn::PassOptions& pass_options, int64_t batch = 4,
                     const Crew& crew = {}, Mode mode = Mode::kTraining)
      : Rig(config, batch, pass_options, crew, mode) {
    for (int64_t b = 0; b < batch; ++b) pass.draw_remaining_tokens(b, RandomKey(9, Stream::kRoute, 0, uint64_t(b)));
  }
};

}  // namespace

TEST_CASE("as many tokens stay as the ratio says, and any set of them is as likely as another") {
  CHECK(nn::Route{0.5}.remaining_tokens(256) == 128);
  CHECK(nn::Route{0.25}.remaining_tokens(16) == 12);
  CHECK(nn::Route{0.7}.remaining_tokens(10) == 3);  // 0.7 * 10 is below 7 in f64
  CHECK(nn::Route{0.5}.remaining_tokens(5) == 3);   // int(2.5) leave
  CHECK(nn::Route{0.999}.remaining_tokens(16) == 1);
  const nn::Route route{0.6};
  constexpr int64_t kTokens = 5, kDraws = 20000;
  std::map<std::vector<int64_t>, int64_t> counts;
  for (uint64_t sample = 0; sample < kDraws; ++sample) {
    std::vector<int64_t> remaining(size_t(route.remaining_tokens(kTokens)), -1);
    nn::draw_remaining_tokens(route, kTokens, RandomKey(1, Stream::kRoute, 3, sample), 0, remaining.data());
    CHECK((remaining[0] >= 0 && remaining[0] < remaining[1] && remaining[1] < kTokens));
    ++counts[remaining];
  }
  CHECK(counts.size() == 10);  // pairs of 5
  const double expected = kDraws / 10.0, deviation = std::sqrt(expected * 0.9);
  for (const auto& [remaining, count] : counts) CHECK(std::abs(double(count) - expected) < 4 * deviation);
  // Routes of one sample draw from different numbers.
  std::vector<int64_t> first(4), second(4);
  const RandomKey key(1, Stream::kRoute, 0, 0);
  nn::draw_remaining_tokens({0.5}, 8, key, 0, first.data());
  nn::draw_remaining_tokens({0.5}, 8, key, 8, second.data());
  CHECK(first != second);
}

TEST_CASE("gradients of a routed model agree with finite differences") {
  const nn::Routes routes = GENERATE(kInside, kFromTheFirst, kToTheLast);
  const nn::ModelConfig config = GENERATE(false, true) ? small_variant() : small();
  RoutedRig rig(config, {.want_input_gradient = true, .routes = routes}, 2);
  check_gradients(rig);
}

TEST_CASE("routes change the same bits for any team, cut and recomputation, and without backward") {
  const nn::Routes routes = GENERATE(kInside, kFromTheFirst, kToTheLast);
  const nn::ModelConfig config = GENERATE(false, true) ? small_variant() : small();
  const DType precision = GENERATE(DType::kF32, DType::kBF16);
  using ops::ClusterSplit;
  std::optional<Outcome> expected;
  for (const Crew& crew : {Crew{1}, Crew{3}, Crew{2, 2, ClusterSplit::kSamples}, Crew{5, 2, ClusterSplit::kSamples},
                           Crew{4, 2, ClusterSplit::kN}})
    for (const auto& [name, recompute] : nn::words_of(nn::Recompute{})) {
      RoutedRig rig(config,
                    {.want_input_gradient = true, .recompute = recompute, .precision = precision, .routes = routes}, 4,
                    crew);
      for (int pass = 0; pass < 2; ++pass) {  // the second finds in shared memory what the first left there
        const Outcome got = rig.run();
        if (!expected) expected = got;
        INFO(dtype_name(precision) << ", " << name << ", " << crew.workers << " workers in " << crew.clusters
                                   << " clusters, pass " << pass);
        CHECK(got == *expected);
      }
    }
  for (const Crew& crew : {Crew{1}, Crew{5, 2, ClusterSplit::kSamples}}) {
    RoutedRig inference(config, {.precision = precision, .routes = routes}, 4, crew, Mode::kInference);
    inference.pass.forward(inference.ctx);
    CHECK(to_vector(inference.pass.out()) == expected->out);
  }
  RoutedRig all(config, {.want_input_gradient = true, .precision = precision});
  CHECK(relative_l2(all.run().out, expected->out) > 0.01);  // the routes were taken
}

TEST_CASE("the order in which the tokens that stay are given changes roundings only") {
  RoutedRig ascending(small_variant(), {.want_input_gradient = true, .routes = kInside}),
      other(small_variant(), {.want_input_gradient = true, .routes = kInside});
  const int64_t each = kInside[0].remaining_tokens(small().tokens());
  for (int64_t b = 0; b < 4; ++b) {
    const auto first = other.pass.remaining_tokens(0).begin() + b * each;
    std::reverse(first, first + each), std::swap(first[1], first[4]);
  }
  const Outcome a = ascending.run(), b = other.run();
  CHECK(relative_l2(b.out, a.out) < 2e-6);
  CHECK(relative_l2(b.grads, a.grads) < 3e-6);
  CHECK(relative_l2(b.dimage, a.dimage) < 3e-6);
}

TEST_CASE("tokens on a route do not see the others, nor are they seen") {
  // With one block, all of which is the route, a sample's routed tokens are what the embedding made of their patches.
  nn::ModelConfig config = small();
  config.depth = 1;
  RoutedRig rig(config, {.routes = {{0.5, 0, 0}}}, 1, {}, Mode::kInference);
  const auto out = [&] {
    rig.pass.forward(rig.ctx);
    return to_vector(rig.pass.out());
  };
  // Pixel (0, 0) of a token's patch, in input and output.
  const auto pixel = [](int64_t token) { return size_t(token / 6 * 2 * 12 + token % 6 * 2); };
  const std::vector<int64_t> remaining = rig.pass.remaining_tokens(0);
  REQUIRE(remaining.size() == 12);
  const auto stays = [&](int64_t t) { return std::find(remaining.begin(), remaining.end(), t) != remaining.end(); };
  const std::vector<float> before = out();
  for (const bool change_remaining : {false, true}) {
    int64_t changed = 0;
    while (stays(changed) != change_remaining) ++changed;
    const size_t at = pixel(changed);
    {
      const Pin<float> image(rig.pass.image());
      image[int64_t(at)] += 1;
    }
    const std::vector<float> after = out();
    {
      const Pin<float> image(rig.pass.image());
      image[int64_t(at)] -= 1;
    }
    for (int64_t t = 0; t < config.tokens(); ++t) {
      INFO("token " << t << " where " << changed << " changes, which " << (change_remaining ? "stays" : "leaves"));
      const bool sees = t == changed || (change_remaining && stays(t));
      CHECK((before[pixel(t)] != after[pixel(t)]) == sees);
    }
  }
}

TEST_CASE("bf16 with routes differs from f32 by roundings") {
  RoutedRig f32(small(), {.want_input_gradient = true, .routes = kInside}),
      bf16(small(), {.want_input_gradient = true, .precision = DType::kBF16, .routes = kInside}),
      all_f32(small(), {.want_input_gradient = true}),
      all_bf16(small(), {.want_input_gradient = true, .precision = DType::kBF16});
  const Outcome a = f32.run(), b = bf16.run(), c = all_f32.run(), d = all_bf16.run();
  const double routed = relative_l2(b.out, a.out), usual = relative_l2(d.out, c.out);
  const double routed_grads = relative_l2(b.grads, a.grads), usual_grads = relative_l2(d.grads, c.grads);
  WARN("relative L2 error of bf16, with routes and without: output " << routed << ", " << usual << "; gradients "
                                                                     << routed_grads << ", " << usual_grads);
  CHECK(routed < 2 * usual);
  CHECK(routed_grads < 2 * usual_grads);
}

TEST_CASE("blocks between the ends of a route keep and compute what their tokens need") {
  const nn::ModelConfig config;  // DiT-S/2: 256 tokens, width 384, 12 blocks
  const nn::Routes routes{{0.5, 2, 8}};
  const auto recompute = GENERATE(nn::Recompute::kNone, nn::Recompute::kSelective, nn::Recompute::kBlock);
  nn::Model model(config);
  const auto pass_of = [&](const nn::Routes& of) {
    return nn::ModelPass(model, 2, Mode::kTraining, {.recompute = recompute, .routes = of});
  };
  nn::ModelPass all = pass_of({}), routed = pass_of(routes);
  const auto kept = [](nn::ModelPass& pass, const std::string& name) {
    size_t bytes = 0;
    for (const auto& node : pass.tape().nodes())
      if (node->name() == name)
        for (const auto& a : node->kept()) bytes += a->bytes();
    return bytes;
  };
  for (int64_t i = 0; i < config.depth; ++i)
    for (const std::string half : {".attn", ".mlp"}) {
      const std::string name = "blocks." + std::to_string(i) + half;
      CHECK(kept(routed, name) == kept(all, name) / (i >= 2 && i <= 8 ? 2 : 1));
    }
  for (const char* end : {"blocks.2.tokens_leave", "blocks.8.tokens_return"}) CHECK(kept(routed, end) == 0);
  const size_t BKC = 2 * 128 * 384 * sizeof(float);  // the gradient of the tokens that stay, and what comes back
  CHECK(routed.tape().temporary_bytes() == all.tape().temporary_bytes() + 2 * BKC);
  // Per token of a block 12 C^2, and attention 2 T C; the adaLN layers are one row per sample.
  const double C = 384, T = 256, K = 128;
  const auto block = [&](double tokens) { return tokens * 12 * C * C + 2 * tokens * tokens * C; };
  CHECK(nn::forward_macs(config) - nn::forward_macs(config, routes) == 7 * (block(T) - block(K)));
  CHECK(nn::tokens_of_block(routes, config, 1) == 256);
  CHECK(nn::tokens_of_block(routes, config, 8) == 128);
}

TEST_CASE("routes that a model cannot have are refused with what to set") {
  const nn::ModelConfig config = small();
  const auto refusal = [](const nn::Routes& routes, const nn::ModelConfig& of) {
    return message_of([&] { nn::validate(routes, of); }, "");
  };
  for (const nn::Routes& good : {nn::Routes{}, kInside, kFromTheFirst, kToTheLast})
    CHECK(refusal(good, config).empty());
  for (const double ratio : {0.0, 1.0, -0.5, 1.5, double(NAN)})
    CHECK_THAT(refusal({{ratio, 1, 2}}, config),
               Catch::Contains("above 0 and below 1") && Catch::Contains("ratio: 0.5"));
  CHECK_THAT(refusal({{1 - 1e-10, 1, 2}}, config), Catch::Contains("stays"));
  CHECK_THAT(refusal({{0.01, 1, 2}}, config), Catch::Contains("no token of 24 leaves") && Catch::Contains("0.04167"));
  // What the message names is accepted: 1 / 144 is rounded up, 1 - 1 / 144 down.
  nn::ModelConfig square = config;
  square.input_height = square.input_width = 12 * square.patch_size;
  CHECK_THAT(refusal({{0.001, 1, 2}}, square), Catch::Contains("at least 0.006945"));
  CHECK(refusal({{0.006945, 1, 2}}, square).empty());
  CHECK_THAT(refusal({{0.5, 1, 5}}, config), Catch::Contains("does not lie in the model") && Catch::Contains("0 to 4"));
  CHECK_THAT(refusal({{0.5, 3, 2}}, config), Catch::Contains("`from` not behind `to`"));
  CHECK_THAT(refusal({{0.5, 1, 2}, {0.5, 2, 3}}, config), Catch::Contains("overlap") && Catch::Contains("from: 3"));
  CHECK_THAT(refusal({{0.5, 3, 3}, {0.5, 1, 2}}, config), Catch::Contains("order of their blocks"));
  nn::ModelConfig uvit = small();
  uvit.kind = nn::ModelKind::kUvit;
  CHECK_THAT(refusal(kInside, uvit), Catch::Contains("model.kind: uvit") && Catch::Contains("train.routing: off"));
  nn::Model model(uvit);
  CHECK_THROWS_AS(nn::ModelPass(model, 1, Mode::kTraining, {.routes = kInside}), InputError);
}
