// Convolutions and group normalisation on a team: bits on any team, packed weights, views, shapes that do not fit. They
// are held against the fixtures by ditverify (conv).
#include "ditrain/ops/conv.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/memory/allocator.hpp"
#include "ditrain/ops/attention.hpp"
#include "ditrain/ops/group_norm.hpp"
#include "support/random_tensor.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::test;

namespace {

Tensor as_bf16(const Tensor& x) {
  const Tensor y(x.shape(), DType::kBF16);
  copy(x, y);
  return y;
}

constexpr ops::GroupNorm kEightGroups{.groups = 8, .silu = true};

}  // namespace

TEST_CASE("a convolution, its moments and the norm after it have the same bits on any team") {
  const ops::Conv2d three = ops::Conv2d::same(3);
  for (const auto& [B, H, W] : {std::array<int64_t, 3>{1, 24, 40}, {2, 9, 7}, {3, 8, 16}}) {
    for (const bool half : {false, true}) {
      CAPTURE(B, H, W, half);
      const auto typed = [&, half = half](const Tensor& t) { return half ? as_bf16(t) : t; };
      const Tensor x = typed(random_tensor({B, H, W, 36}, 1)), w = typed(random_tensor({3, 3, 36, 64}, 2));
      const Tensor bias = random_tensor({64}, 3), weight = random_tensor({64}, 4), shift = random_tensor({64}, 5);
      const Shape shape{B, H, W, 64};
      const Tensor residual = typed(random_tensor(shape, 6));
      const auto made = on_teams([&](ops::Context& ctx) {
        const Tensor y(shape, x.dtype()), moments(ops::moments_shape(shape));
        ops::conv2d(ctx, x, w, bias, three, y,
                    {.kind = ops::ConvOutput::Kind::kResidual, .residual = residual, .moments = moments});
        ops::group_norm(ctx, y, moments, weight, shift, kEightGroups, y);
        return y;
      });
      const auto apart = on_teams([&](ops::Context& ctx) {
        const Tensor y(shape, x.dtype()), moments(ops::moments_shape(shape));
        ops::conv2d(ctx, x, w, bias, three, y, {.kind = ops::ConvOutput::Kind::kResidual, .residual = residual});
        ops::image_moments(ctx, y, moments);
        ops::group_norm(ctx, y, moments, weight, shift, kEightGroups, y);
        return y;
      });
      CHECK(made == apart);
    }
  }
}

TEST_CASE("group normalisation equals sums in f64, far from zero too") {
  for (const float offset : {0.0f, 300.0f}) {
    const Tensor x = random_tensor({2, 13, 11, 24}, 1), weight = random_tensor({24}, 2), bias = random_tensor({24}, 3);
    for (int64_t i = 0; i < x.size(); ++i) Pin<float>(x)[i] += offset;
    const auto y = on_teams([&](ops::Context& ctx) {
      const Tensor out(x.shape()), moments(ops::moments_shape(x.shape()));
      ops::image_moments(ctx, x, moments);
      ops::group_norm(ctx, x, moments, weight, bias, {.groups = 6}, out);
      return out;
    });
    const auto px = to_vector(x), pw = to_vector(weight), pb = to_vector(bias);
    constexpr int64_t kPixels = 13 * 11, kC = 24, kEach = 4;
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t g = 0; g < 6; ++g) {
        double sum = 0, squares = 0;
        const auto at = [&](int64_t p, int64_t c) { return size_t((b * kPixels + p) * kC + g * kEach + c); };
        for (int64_t i = 0; i < kPixels * kEach; ++i) sum += double(px[at(i / kEach, i % kEach)]);
        const double mean = sum / double(kPixels * kEach);
        for (int64_t i = 0; i < kPixels * kEach; ++i)
          squares += std::pow(double(px[at(i / kEach, i % kEach)]) - mean, 2);
        const double rstd = 1 / std::sqrt(squares / double(kPixels * kEach) + 1e-6);
        for (int64_t i = 0; i < kPixels * kEach; ++i) {
          const size_t c = size_t(g * kEach + i % kEach), j = at(i / kEach, i % kEach);
          const double want = (double(px[j]) - mean) * rstd * double(pw[c]) + double(pb[c]);
          REQUIRE(std::abs(double(y[j]) - want) <= 2e-6 * (1 + double(offset)) * (1 + std::abs(want)));
        }
      }
  }
}

TEST_CASE("attention of one head has the same bits on any team") {
  const Tensor qkv = random_tensor({1, 200, 3 * 48}, 1);
  on_teams([&](ops::Context& ctx) {
    const Tensor out({1, 200, 48}), lse({1, 1, 200});
    ops::attention_forward(ctx, qkv, 1, out, lse);
    return out;
  });
}

TEST_CASE("attention of one head keeps the workers of all clusters busy, whether samples or heads go to clusters") {
  parallel::Team team({.num_workers = 4, .num_clusters = 2});
  const Tensor qkv = random_tensor({1, 256, 3 * 16}, 1);
  std::vector<std::vector<float>> results;
  for (const ops::ClusterSplit cut : {ops::ClusterSplit::kSamples, ops::ClusterSplit::kN}) {
    ops::Context ctx(team, cut);
    const Tensor out({1, 256, 16}), lse({1, 1, 256});
    const size_t before = memory::system_memory().allocations();
    ops::attention_forward(ctx, qkv, 1, out, lse);
    CHECK(memory::system_memory().allocations() - before == 4);  // a worker that computes takes scratch
    results.push_back(to_vector(out));
  }
  CHECK((results[0] == results[1]));
}

TEST_CASE("a convolution of views has the bits of one of the channels alone, and touches no others") {
  struct Case {
    ops::Conv2d conv;
    int64_t inputs, outputs;
  };
  const Case cases[] = {{{}, 32, 48},
                        {ops::Conv2d::same(3), 13, 7},
                        {{.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2}, 16, 33},
                        {{.kernel_w = 7, .pad_left = 3, .pad_right = 3}, 5, 64}};
  constexpr float kUntouched = 77;
  for (const Case& c : cases)
    for (const bool half : {false, true}) {
      CAPTURE(c.conv.kernel_h, c.conv.kernel_w, c.inputs, c.outputs, half);
      const auto typed = [&](const Tensor& t) { return half ? as_bf16(t) : t; };
      const Tensor wide = random_tensor({2, 9, 8, c.inputs + 6}, 1), alone({2, 9, 8, c.inputs});
      const Pin<float> from(wide), to(alone);
      for (int64_t i = 0; i < alone.size(); ++i) to[i] = from[i / c.inputs * (c.inputs + 6) + 2 + i % c.inputs];
      const Tensor x = typed(wide), narrow = typed(alone), bias = random_tensor({c.outputs}, 3);
      const Tensor w = typed(random_tensor({c.conv.kernel_h, c.conv.kernel_w, c.inputs, c.outputs}, 2));
      const Shape shape = ops::conv2d_shape(narrow.shape(), w.shape(), c.conv);
      const auto want = on_teams([&](ops::Context& ctx) {
        const Tensor y(shape, x.dtype());
        ops::conv2d(ctx, narrow, w, bias, c.conv, y, {.kind = ops::ConvOutput::Kind::kRelu});
        return y;
      });
      const auto got = on_teams([&](ops::Context& ctx) {
        const Tensor plain({shape[0], shape[1], shape[2], c.outputs + 4});
        std::fill_n(Pin<float>(plain).get(), plain.size(), kUntouched);
        const Tensor y = typed(plain);
        ops::conv2d(ctx, {x, 2, c.inputs}, w, bias, c.conv, {y, 3, c.outputs}, ops::ConvOutput::Kind::kRelu);
        return y;
      });
      for (size_t i = 0; i < got.size(); ++i) {
        const int64_t pixel = int64_t(i) / (c.outputs + 4), channel = int64_t(i) % (c.outputs + 4) - 3;
        const bool inside = channel >= 0 && channel < c.outputs;
        REQUIRE(got[i] == (inside ? want[size_t(pixel * c.outputs + channel)] : kUntouched));
      }
    }
  Workers one;
  const Tensor x({1, 4, 4, 8}), w({1, 1, 4, 2}), y({1, 4, 4, 8});
  const auto run = [&](const ops::ChannelView& from, const ops::ChannelView& to, ops::ConvOutput::Kind kind) {
    ops::conv2d(one.ctx, from, w, {}, {}, to, kind);
  };
  CHECK_NOTHROW(run({x, 4, 4}, {y, 6, 2}, ops::ConvOutput::Kind::kPlain));
  CHECK_THROWS_AS(run({x, 5, 4}, {y, 6, 2}, ops::ConvOutput::Kind::kPlain), LogicFault);
  CHECK_THROWS_AS(run({x, 4, 4}, {y, -1, 2}, ops::ConvOutput::Kind::kPlain), LogicFault);
  CHECK_THROWS_AS(run({x, 4, 4}, {y, 6, 2}, ops::ConvOutput::Kind::kResidual), LogicFault);
  CHECK_THROWS_AS(run({x, 4, 3}, {y, 6, 2}, ops::ConvOutput::Kind::kPlain), ShapeError);
  CHECK_THROWS_AS(run({x, 4, 4}, {y, 5, 3}, ops::ConvOutput::Kind::kPlain), ShapeError);
}

TEST_CASE("a convolution with packed weights has the same bits, on any team and from the reference") {
  const ops::Conv2d three = ops::Conv2d::same(3);
  for (const bool half : {false, true}) {
    CAPTURE(half);
    const auto typed = [&](const Tensor& t) { return half ? as_bf16(t) : t; };
    const Tensor x = typed(random_tensor({2, 11, 19, 36}, 1)), w = typed(random_tensor({3, 3, 36, 70}, 2));
    const Tensor bias = random_tensor({70}, 3);
    const ops::ConvWeights packed = ops::packed_weights(w);
    CHECK(packed.values.bytes() == ops::packed_weights_bytes(w.shape(), w.dtype()));
    const auto with = [&](const ops::ConvWeights& weights) {
      return [&, weights](ops::Context& ctx) {
        const Tensor y({2, 11, 19, 70}, x.dtype());
        ops::conv2d(ctx, x, weights, bias, three, y);
        return y;
      };
    };
    CHECK(on_teams(with(packed)) == on_teams(with(w)));
    Workers one;
    one.ctx.gemm_settings.backend = ops::GemmBackend::kReference;
    const auto by_reference = [&](const ops::ConvWeights& weights) {
      const Tensor y = with(weights)(one.ctx), f32(y.shape());
      copy(y, f32);
      return to_vector(f32);
    };
    CHECK(by_reference(packed) == by_reference(w));
  }
  Workers one;
  const Tensor y({1, 4, 4, 5});
  CHECK_THROWS_AS(
      ops::conv2d(one.ctx, as_bf16(Tensor({1, 4, 4, 8})), ops::packed_weights(Tensor({3, 3, 8, 5})), {}, three, y),
      LogicFault);
}

TEST_CASE("convolutions refuse shapes and types that do not fit") {
  Workers one;
  const ops::Conv2d three = ops::Conv2d::same(3), valid = {.kernel_h = 3, .kernel_w = 3};
  const Tensor x({1, 4, 4, 8}), w({3, 3, 8, 5}), bias({5}), y({1, 4, 4, 5});
  const auto run = [&](const Tensor& in, const Tensor& weight, const Tensor& b, const Tensor& out,
                       const ops::ConvOutput& output = {}) { ops::conv2d(one.ctx, in, weight, b, three, out, output); };
  CHECK_NOTHROW(run(x, w, bias, y));
  CHECK_THROWS_AS(run(Tensor({1, 4, 4, 7}), w, bias, y), ShapeError);
  CHECK_THROWS_AS(run(x, Tensor({1, 3, 8, 5}), bias, y), ShapeError);
  CHECK_THROWS_AS(run(x, w, Tensor({4}), y), ShapeError);
  CHECK_THROWS_AS(run(x, w, bias, Tensor({1, 4, 5, 5})), ShapeError);
  CHECK_THROWS_AS(run(x, w, bias, y, {.kind = ops::ConvOutput::Kind::kResidual, .residual = x}), ShapeError);
  CHECK_THROWS_AS(run(x, w, bias, y, {.moments = Tensor({1, 1, 3, 4})}), ShapeError);
  CHECK_THROWS_AS(run(x, w, bias, Tensor(y.shape(), DType::kBF16)), ShapeError);
  CHECK_THROWS_AS(ops::conv2d_shape({1, 2, 9, 8}, w.shape(), valid), ShapeError);
  const Tensor moments(ops::moments_shape(y.shape()));
  CHECK_THROWS_AS(ops::group_norm(one.ctx, y, moments, bias, bias, {.groups = 2}, y), ShapeError);
}
