// Tokens joined and taken apart, the norm with weight and bias of its own, and the 3 x 3 convolution: results against
// plain formulas, gradients as the adjoint of the linear map, and the same bits for any team.
#include "ditrain/ops/tokens.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "ditrain/base/error.hpp"
#include "ditrain/ops/conv3x3.hpp"
#include "ditrain/ops/elementwise.hpp"
#include "support/random_tensor.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::test;

namespace {

float at(const Tensor& t, int64_t i) { return Pin<float>(t)[i]; }

}  // namespace

TEST_CASE("extra tokens stand before those of the image, and their gradients are the way back") {
  constexpr int64_t B = 2, L = 5, C = 20, T = L + 2;
  const Tensor first = random_tensor({B, C}, 1), second = random_tensor({B, C}, 2),
               patches = random_tensor({B, L, C}, 3), pos = random_tensor({1, T, C}, 4),
               dx = random_tensor({B, T, C}, 5);
  on_teams([&](ops::Context& ctx) {
    const Tensor x({B, T, C});
    ops::join_tokens(ctx, {first, second}, patches, pos, x);
    for (int64_t c = 0; c < C; ++c) {
      CHECK(at(x, T * C + c) == at(first, C + c) + at(pos, c));
      CHECK(at(x, C + c) == at(second, c) + at(pos, C + c));
      CHECK(at(x, (T + 4) * C + c) == at(patches, (L + 2) * C + c) + at(pos, 4 * C + c));
    }
    // <x, dx> with x linear in all operands: each operand's share is <operand, its gradient>.
    const Tensor dfirst({B, C}), dsecond({B, C}), dpatches({B, L, C}), dpos({1, T, C});
    ops::split_tokens_gradient(ctx, dx, {dfirst, dsecond}, dpatches, dpos, /*accumulate=*/false);
    CHECK(dot(first, dfirst) + dot(second, dsecond) + dot(patches, dpatches) + dot(pos, dpos) ==
          Approx(dot(x, dx)).epsilon(1e-5));
    const Tensor twice = clone(dpos), unused({B, L, C});
    ops::split_tokens_gradient(ctx, dx, {Tensor(), dsecond}, unused, twice, /*accumulate=*/true);
    for (int64_t i = 0; i < dpos.size(); ++i) CHECK(at(twice, i) == Approx(2 * at(dpos, i)).margin(1e-6));
    return to_vector(dpos);
  });
}

TEST_CASE("tokens by number are gathered, and put back among the others") {
  constexpr int64_t B = 3, T = 7, C = 20, K = 3;
  const Tensor x = random_tensor({B, T, C}, 1), y = random_tensor({B, K, C}, 2);
  const std::vector<int64_t> places{0, 3, 6, 5, 1, 2, 6, 0, 4};
  on_teams([&](ops::Context& ctx) {
    const Tensor some({B, K, C}), all = clone(x);
    ops::gather_tokens(ctx, x, places.data(), some);
    ops::scatter_tokens(ctx, y, places.data(), all);
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t t = 0; t < T; ++t) {
        const auto begin = places.begin() + b * K, found = std::find(begin, begin + K, t);
        const int64_t k = found - begin;
        for (int64_t c = 0; c < C; ++c) {
          const int64_t of_all = (b * T + t) * C + c, of_some = (b * K + k) * C + c;
          if (k < K) CHECK(at(some, of_some) == at(x, of_all));
          CHECK(at(all, of_all) == (k < K ? at(y, of_some) : at(x, of_all)));
        }
      }
    }
    CHECK_THROWS_AS(ops::gather_tokens(ctx, x, places.data(), Tensor({B, K, C + 1})), ShapeError);
    return to_vector(all);
  });
}

TEST_CASE("the last tokens alone, and zeros as the gradient of the others") {
  constexpr int64_t B = 2, L = 3, C = 4, T = 5;
  const Tensor x = random_tensor({B, T, C}, 1), dy = random_tensor({B, L, C}, 2);
  on_teams([&](ops::Context& ctx) {
    const Tensor y({B, L, C}), dx = random_tensor({B, T, C}, 3);
    ops::last_tokens(ctx, x, y);
    CHECK(at(y, L * C) == at(x, (T + 2) * C));
    ops::last_tokens_gradient(ctx, dy, dx);
    for (int64_t i = 0; i < 2 * C; ++i) CHECK(at(dx, T * C + i) == 0);
    CHECK(dot(x, dx) == Approx(dot(y, dy)).epsilon(1e-5));
    return to_vector(dx);
  });
}

TEST_CASE("rows side by side come apart again") {
  const Tensor a = random_tensor({3, 7, 6}, 1), b = random_tensor({3, 7, 6}, 2);
  on_teams([&](ops::Context& ctx) {
    const Tensor y({3, 7, 12}), a2(a.shape()), b2(b.shape());
    ops::concatenate(ctx, a, b, y);
    CHECK(at(y, 12 + 5) == at(a, 6 + 5));
    CHECK(at(y, 12 + 6) == at(b, 6));
    ops::split(ctx, y, a2, b2);
    CHECK(to_vector(a2) == to_vector(a));
    CHECK(to_vector(b2) == to_vector(b));
    CHECK_THROWS_AS(ops::split(ctx, a, a2, b2), ShapeError);
    return to_vector(y);
  });
}

TEST_CASE("a norm's own weight and bias are a modulation that is the same for all samples") {
  constexpr int64_t B = 2, T = 40, C = 24;
  constexpr float kEps = 1e-5f;
  const Tensor x = random_tensor({B, T, C}, 1, 0.01f), weight = random_tensor({C}, 2), bias = random_tensor({C}, 3),
               dy = random_tensor({B, T, C}, 4);
  on_teams([&](ops::Context& ctx) {
    const Tensor joined({B, 2 * C}), djoined({B, 2 * C}), y(x.shape()), mean({B, T}), rstd({B, T}), dx(x.shape());
    ops::join_affine(ctx, weight, bias, joined);
    const ops::Chunk shift{joined, 0}, scale{joined, 1};
    ops::layer_norm_modulate_forward(ctx, x, shift, scale, y, mean, rstd, ops::NormKind::kLayer, kEps);
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < C; ++c) sum += at(x, c), squares += double(at(x, c)) * at(x, c);
    const double deviation = std::sqrt(squares / C - sum * sum / C / C + kEps);
    for (int64_t c = 0; c < C; ++c)
      CHECK(at(y, c) == Approx((at(x, c) - sum / C) / deviation * at(weight, c) + at(bias, c)).margin(2e-5));
    ops::layer_norm_modulate_backward(ctx, x, mean, rstd, scale, dy, dx, {djoined, 0}, {djoined, 1});
    const Tensor dweight({C}), dbias({C});
    ops::split_affine_gradient(ctx, djoined, dweight, dbias, /*accumulate=*/false);
    // y is linear in weight and bias together.
    CHECK(dot(weight, dweight) + dot(bias, dbias) == Approx(dot(y, dy)).epsilon(1e-4));
    const float before = at(dweight, 3);
    ops::split_affine_gradient(ctx, djoined, dweight, dbias, /*accumulate=*/true);
    CHECK(at(dweight, 3) == Approx(2 * before).epsilon(1e-5));
    return to_vector(dweight);
  });
}

TEST_CASE("a 3 x 3 convolution: its formula, and gradients as the way back") {
  for (const Shape& shape : {Shape{2, 3, 5, 4}, Shape{1, 2, 1, 1}, Shape{1, 1, 2, 1}}) {
    const int64_t B = shape[0], C = shape[1], H = shape[2], W = shape[3], N = 4;
    const Tensor x = random_tensor(shape, 1), w = random_tensor({N, C, 3, 3}, 2), bias = random_tensor({N}, 3),
                 dy = random_tensor({B, N, H, W}, 4);
    on_teams([&](ops::Context& ctx) {
      const Tensor y({B, N, H, W}), dx(shape), dw(w.shape()), dbias({N});
      ops::conv3x3_forward(ctx, x, w, bias, y);
      for (int64_t i = 0; i < y.size(); ++i) {
        const int64_t b = i / (N * H * W), n = i / (H * W) % N, row = i / W % H, column = i % W;
        double sum = at(bias, n);
        for (int64_t c = 0; c < C; ++c)
          for (int64_t p = -1; p <= 1; ++p)
            for (int64_t q = -1; q <= 1; ++q)
              if (row + p >= 0 && row + p < H && column + q >= 0 && column + q < W)
                sum += double(at(w, ((n * C + c) * 3 + p + 1) * 3 + q + 1)) *
                       at(x, ((b * C + c) * H + row + p) * W + column + q);
        CHECK(at(y, i) == Approx(sum).margin(1e-5));
      }
      ops::conv3x3_backward_data(ctx, dy, w, dx);
      ops::conv3x3_backward_weight(ctx, x, dy, dw, dbias, /*accumulate=*/false);
      const double shares = dot(y, dy) - dot(bias, dbias);
      CHECK(dot(x, dx) == Approx(shares).margin(1e-4));
      CHECK(dot(w, dw) == Approx(shares).margin(1e-4));
      const Tensor again = clone(dw);
      ops::conv3x3_backward_weight(ctx, x, dy, again, dbias, /*accumulate=*/true);
      for (int64_t i = 0; i < dw.size(); ++i) CHECK(at(again, i) == Approx(2 * at(dw, i)).margin(1e-5));
      std::vector<float> all = to_vector(dx);
      for (const float v : to_vector(dw)) all.push_back(v);
      return all;
    });
  }
}
