// Ops: results against plain formulas in f64, gradients by finite differences, and the same bits for any team.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/random.hpp"
#include "ditrain/ops/attention.hpp"
#include "ditrain/ops/elementwise.hpp"
#include "ditrain/ops/embedding.hpp"
#include "ditrain/ops/linear.hpp"
#include "ditrain/ops/random.hpp"
#include "support/random_tensor.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::test;

namespace {

// d(sum y dy)/dx along a random direction, by central differences of `forward`, against dx . direction.
void check_gradient(const Tensor& x, const Tensor& dx, const std::function<double()>& forward,
                    double tolerance = 2e-3) {
  const Tensor direction = random_tensor(x.shape(), 99), x0 = clone(x);
  const double h = 1e-2;
  const auto at = [&](double step) {
    const Pin<float> p(x), p0(x0), d(direction);
    for (int64_t i = 0; i < x.size(); ++i) p[i] = float(p0[i] + step * d[i]);
    return forward();
  };
  const double numeric = (at(h) - at(-h)) / (2 * h), analytic = dot(dx, direction);
  copy(x0, x);
  INFO("numeric " << numeric << " analytic " << analytic);
  CHECK(std::fabs(numeric - analytic) <= tolerance * (1 + std::fabs(analytic)));
}

/// All elements of two tensors.
Tensor joined(const Tensor& a, const Tensor& b) {
  const Tensor both({a.size() + b.size()});
  copy(a, both.slice(0, a.shape()));
  copy(b, both.slice(a.size(), b.shape()));
  return both;
}

constexpr int64_t kTokens = 70;  // sums over them are of several blocks, the last one a part

}  // namespace

TEST_CASE("linear layers agree with plain sums for odd sizes") {
  for (const auto& [M, K, N] : {std::array<int64_t, 3>{1, 1, 1}, {5, 7, 3}, {33, 65, 129}, {70, 600, 31}}) {
    const Tensor x = random_tensor({M, K}, 1), w = random_tensor({N, K}, 2), b = random_tensor({N}, 3);
    const auto y = on_teams([&, M = M, N = N](ops::Context& ctx) {
      const Tensor out({M, N});
      ops::linear_forward(ctx, x, w, b, out);
      return out;
    });
    const auto px = to_vector(x), pw = to_vector(w), pb = to_vector(b);
    for (int64_t m = 0; m < M; ++m)
      for (int64_t n = 0; n < N; ++n) {
        double sum = pb[size_t(n)];
        for (int64_t k = 0; k < K; ++k) sum += double(px[size_t(m * K + k)]) * pw[size_t(n * K + k)];
        REQUIRE(std::fabs(y[size_t(m * N + n)] - sum) < 1e-5 * std::sqrt(double(K)) * 4);
      }
  }
}

TEST_CASE("linear gradients: finite differences, accumulation and the same bits for any team") {
  Workers one;
  const int64_t M = 37, K = 45, N = 67;
  const Tensor x = random_tensor({M, K}, 1), w = random_tensor({N, K}, 2), b = random_tensor({N}, 3),
               dy = random_tensor({M, N}, 4), y({M, N}), dx({M, K}), dw({N, K}), db({N});
  const auto forward = [&] {
    ops::linear_forward(one.ctx, x, w, b, y);
    return dot(y, dy);
  };
  ops::linear_backward_data(one.ctx, dy, w, dx);
  ops::linear_backward_weight(one.ctx, x, dy, dw, db);
  check_gradient(x, dx, forward);
  check_gradient(w, dw, forward);
  check_gradient(b, db, forward);
  const double before = dot(db, db);
  ops::linear_backward_weight(one.ctx, x, dy, dw, db);  // a second time: twice the gradient
  CHECK(dot(db, db) == Approx(4 * before));
  on_teams([&](ops::Context& ctx) {
    const Tensor g({N, K}), gb({N});
    ops::linear_backward_weight(ctx, x, dy, g, gb);
    return g;
  });
  on_teams([&](ops::Context& ctx) {
    const Tensor g = clone(x);
    ops::linear_backward_data(ctx, dy, w, g, /*accumulate=*/true);
    return g;
  });
}

TEST_CASE("weight gradients that overwrite are those added to zeros, whatever was there") {
  for (const int64_t M : {1, 37, 1100}) {  // below and above a chunk of the sum
    const int64_t K = 45, N = 67;
    const Tensor x = random_tensor({M, K}, 1), dy = random_tensor({M, N}, 4), dw({N, K}), db({N});
    Workers one;
    ops::linear_backward_weight(one.ctx, x, dy, dw, db);
    on_teams([&](ops::Context& ctx) {
      const Tensor g = random_tensor({N, K}, 5, std::numeric_limits<float>::quiet_NaN()), gb = random_tensor({N}, 6);
      ops::linear_backward_weight(ctx, x, dy, g, gb, /*accumulate=*/false);
      CHECK(to_vector(g) == to_vector(dw));
      CHECK(to_vector(gb) == to_vector(db));
      return g;
    });
  }
}

TEST_CASE("layer norm with modulation: gradients and the same bits for any team") {
  Workers one;
  const int64_t B = 3, T = kTokens, C = 40;
  const Tensor x = random_tensor({B, T, C}, 1), cond = random_tensor({B, 6 * C}, 2), dy = random_tensor({B, T, C}, 3),
               y({B, T, C}), mean({B, T}), rstd({B, T}), dx({B, T, C}), dcond({B, 6 * C});
  const ops::Chunk shift{cond, 3}, scale{cond, 4}, dshift{dcond, 3}, dscale{dcond, 4};
  const auto forward = [&] {
    ops::layer_norm_modulate_forward(one.ctx, x, shift, scale, y, mean, rstd);
    return dot(y, dy);
  };
  forward();
  const auto py = to_vector(y), px = to_vector(x), pc = to_vector(cond);
  double sum = 0, square = 0;  // row (1, 2) by hand
  for (int64_t c = 0; c < C; ++c) sum += px[size_t((T + 2) * C + c)];
  for (int64_t c = 0; c < C; ++c) square += std::pow(px[size_t((T + 2) * C + c)] - sum / double(C), 2);
  for (int64_t c = 0; c < C; ++c) {
    const double xhat = (px[size_t((T + 2) * C + c)] - sum / double(C)) / std::sqrt(square / double(C) + 1e-6);
    CHECK(py[size_t((T + 2) * C + c)] ==
          Approx(xhat * (1 + pc[size_t(10 * C + c)]) + pc[size_t(9 * C + c)]).margin(1e-5));
  }
  ops::layer_norm_modulate_backward(one.ctx, x, mean, rstd, scale, dy, dx, dshift, dscale);
  check_gradient(x, dx, forward);
  check_gradient(cond, dcond, forward);
  on_teams([&](ops::Context& ctx) {
    const Tensor d({B, T, C}), dc({B, 6 * C});
    ops::layer_norm_modulate_forward(ctx, x, shift, scale, y, mean, rstd);
    ops::layer_norm_modulate_backward(ctx, x, mean, rstd, scale, dy, d, {dc, 3}, {dc, 4});
    return joined(d, dc);
  });
}

TEST_CASE("gated residual, GELU and SiLU: gradients and the same bits for any team") {
  Workers one;
  const int64_t B = 2, T = kTokens, C = 24;
  const Tensor x = random_tensor({B, T, C}, 1), h = random_tensor({B, T, C}, 2), cond = random_tensor({B, 2 * C}, 3),
               dy = random_tensor({B, T, C}, 4), y({B, T, C}), dh({B, T, C}), dcond({B, 2 * C}), dx({B, T, C});
  const auto gated = [&] {
    ops::gate_residual_forward(one.ctx, x, {cond, 1}, h, y);
    return dot(y, dy);
  };
  ops::gate_residual_backward(one.ctx, dy, {cond, 1}, h, dh, {dcond, 1});
  check_gradient(h, dh, gated);
  check_gradient(cond, dcond, gated);
  for (const bool gelu : {true, false}) {
    const auto forward = [&] {
      gelu ? ops::gelu_forward(one.ctx, x, y) : ops::silu_forward(one.ctx, x, y);
      return dot(y, dy);
    };
    gelu ? ops::gelu_backward(one.ctx, x, dy, dx) : ops::silu_backward(one.ctx, x, dy, dx);
    check_gradient(x, dx, forward);
  }
  on_teams([&](ops::Context& ctx) {
    const Tensor g({B, T, C}), dc({B, 2 * C});
    ops::gate_residual_backward(ctx, dy, {cond, 1}, h, g, {dc, 1});
    ops::gelu_forward(ctx, g, g);
    return joined(g, dc);
  });
}

TEST_CASE("attention: gradients and the same bits for any team") {
  Workers one;
  const int64_t B = 2, T = kTokens, H = 3, D = 8;
  const Tensor qkv = random_tensor({B, T, 3 * H * D}, 1, 0.7f), dy = random_tensor({B, T, H * D}, 2),
               out({B, T, H * D}), lse({B, H, T}), dqkv(qkv.shape());
  const auto forward = [&] {
    ops::attention_forward(one.ctx, qkv, H, out, lse);
    return dot(out, dy);
  };
  forward();
  ops::attention_backward(one.ctx, qkv, H, out, lse, dy, dqkv);
  check_gradient(qkv, dqkv, forward);
  on_teams([&](ops::Context& ctx) {
    const Tensor o({B, T, H * D}), l({B, H, T}), d(qkv.shape());
    ops::attention_forward(ctx, qkv, H, o, l);
    ops::attention_backward(ctx, qkv, H, o, l, dy, d);
    return d;
  });
}

namespace {

/// Attention whose queries and keys are normalised, forward and backward.
struct NormedAttention {
  int64_t B = 2, T = kTokens, H = 3, D = 8;
  bool layer;
  Tensor qkv, dy;
  ops::HeadNorm norm;
  explicit NormedAttention(bool with_biases, DType type = DType::kF32)
      : layer(with_biases), qkv({B, T, 3 * H * D}, type), dy({B, T, H * D}, type) {
    copy(random_tensor(qkv.shape(), 1, 0.7f), qkv), copy(random_tensor(dy.shape(), 2), dy);
    const auto term = [&](uint64_t seed) { return random_tensor({D}, seed, 0.5f); };
    norm = {term(3), layer ? term(4) : Tensor(), term(5), layer ? term(6) : Tensor()};
  }
  int64_t terms() const { return layer ? 4 : 2; }
  /// What forward and backward make, of `ctx` and of the shapes above.
  struct Results {
    Tensor out, lse, dqkv, dterms, sums;
  };
  Results run(ops::Context& ctx) const {
    Results r{Tensor(dy.shape(), qkv.dtype()), Tensor({B, H, T}), Tensor(qkv.shape(), qkv.dtype()),
              Tensor({B, H, terms(), D}), Tensor({terms(), D})};
    ops::attention_forward(ctx, qkv, H, r.out, r.lse, norm);
    ops::attention_backward(ctx, qkv, H, r.out, r.lse, dy, r.dqkv, norm, r.dterms);
    ops::sum_over_heads(ctx, r.dterms, r.sums);
    return r;
  }
};

/// One row of a head, normalised as the formula says.
void normalise(const float* x, int64_t D, const Tensor& weight, const Tensor& bias, float* y) {
  const bool layer = bias.defined();
  const auto w = to_vector(weight), b = layer ? to_vector(bias) : std::vector<float>(size_t(D));
  double mean = 0, square = 0;
  for (int64_t j = 0; layer && j < D; ++j) mean += x[j] / double(D);
  for (int64_t j = 0; j < D; ++j) square += (x[j] - mean) * (x[j] - mean) / double(D);
  for (int64_t j = 0; j < D; ++j)
    y[j] = float((x[j] - mean) / std::sqrt(square + (layer ? 1e-5 : 1e-6)) * w[size_t(j)] + b[size_t(j)]);
}

}  // namespace

TEST_CASE("attention with normalised queries and keys is that of queries and keys normalised before") {
  Workers one;
  const NormedAttention a(GENERATE(true, false));
  const Tensor before = clone(a.qkv), out({a.B, a.T, a.H * a.D}), lse({a.B, a.H, a.T});
  {
    const Pin<float> from(a.qkv), to(before);
    for (int64_t row = 0; row < a.B * a.T * 2 * a.H; ++row) {  // q and k of every token: two thirds of its heads
      const int64_t at = row / (2 * a.H) * 3 * a.H * a.D + row % (2 * a.H) * a.D;
      const bool q = row % (2 * a.H) < a.H;
      normalise(from + at, a.D, q ? a.norm.q_weight : a.norm.k_weight, q ? a.norm.q_bias : a.norm.k_bias, to + at);
    }
  }
  ops::attention_forward(one.ctx, before, a.H, out, lse);
  const NormedAttention::Results got = a.run(one.ctx);
  for (const auto& [x, y] : {std::pair(got.out, out), {got.lse, lse}}) {
    const auto is = to_vector(x), want = to_vector(y);
    for (size_t i = 0; i < is.size(); ++i) CHECK(is[i] == Approx(want[i]).margin(2e-6));
  }
}

TEST_CASE("attention with normalised queries and keys: gradients and the same bits for any team") {
  Workers one;
  const bool layer = GENERATE(true, false);
  const NormedAttention a(layer);
  const NormedAttention::Results r = a.run(one.ctx);
  const auto forward = [&] { return dot(a.run(one.ctx).out, a.dy); };
  check_gradient(a.qkv, r.dqkv, forward, 1e-2);  // the scale of a narrow head bends within a step
  const std::vector<Tensor> terms = a.norm.terms();
  REQUIRE(int64_t(terms.size()) == a.terms());
  for (int64_t i = 0; i < a.terms(); ++i) {
    CAPTURE(i);
    check_gradient(terms[size_t(i)], clone(r.sums.slice(i * a.D, {a.D})), forward);
  }
  const DType type = GENERATE(DType::kF32, DType::kBF16);
  const NormedAttention any(layer, type);
  on_teams([&](ops::Context& ctx) {
    const NormedAttention::Results each = any.run(ctx);
    const Tensor dqkv(each.dqkv.shape());
    copy(each.dqkv, dqkv);
    return joined(joined(dqkv, each.dterms), each.sums);
  });
}

TEST_CASE("attention with normalised queries and keys in bf16 is that of f32 but for roundings") {
  Workers one;
  const bool layer = GENERATE(true, false);
  const NormedAttention f32(layer), bf16(layer, DType::kBF16);
  const NormedAttention::Results want = f32.run(one.ctx), got = bf16.run(one.ctx);
  const auto distance = [](const Tensor& a, const Tensor& b) {  // relative L2
    const Tensor wide(a.shape());
    copy(a, wide);
    double error = 0;
    const auto x = to_vector(wide), y = to_vector(b);
    for (size_t i = 0; i < x.size(); ++i) error += std::pow(double(x[i]) - double(y[i]), 2);
    return std::sqrt(error / dot(b, b));
  };
  CHECK(distance(got.out, want.out) < 0.02);
  CHECK(distance(got.dqkv, want.dqkv) < 0.03);
  CHECK(distance(got.sums, want.sums) < 0.03);
  CHECK(distance(got.out, want.out) > 1e-4);  // bf16 it is
}

TEST_CASE("gradients of a norm overwrite or are added") {
  Workers one;
  const NormedAttention a(true);
  const ops::HeadNorm gradients{random_tensor({a.D}, 11), random_tensor({a.D}, 12), random_tensor({a.D}, 13),
                                random_tensor({a.D}, 14)};
  const Tensor sums = random_tensor({4, a.D}, 15);
  const std::vector<float> before = to_vector(gradients.k_weight), row = to_vector(sums.slice(2 * a.D, {a.D}));
  ops::set_gradients(one.ctx, sums, gradients, /*accumulate=*/true);
  for (size_t j = 0; j < row.size(); ++j) CHECK(to_vector(gradients.k_weight)[j] == before[j] + row[j]);
  ops::set_gradients(one.ctx, sums, gradients, /*accumulate=*/false);
  CHECK(to_vector(gradients.k_weight) == row);
  CHECK_THROWS_AS(ops::set_gradients(one.ctx, Tensor({2, a.D}), gradients, false), LogicFault);
}

TEST_CASE("a norm of another width, or half of one, is refused") {
  Workers one;
  const NormedAttention a(true);
  const Tensor out(a.dy.shape()), lse({a.B, a.H, a.T}), wide({a.D + 1});
  const auto forward = [&](const ops::HeadNorm& norm) { ops::attention_forward(one.ctx, a.qkv, a.H, out, lse, norm); };
  CHECK_THROWS_WITH(forward({wide, wide, wide, wide}), Catch::Contains("scale or shift of queries or keys"));
  CHECK_THROWS_AS(forward({a.norm.q_weight, {}, a.norm.k_weight, a.norm.k_bias}), LogicFault);
  CHECK_THROWS_AS(forward({a.norm.q_weight, {}, {}, {}}), LogicFault);
  CHECK_THROWS_AS(
      ops::attention_backward(one.ctx, a.qkv, a.H, out, lse, a.dy, Tensor(a.qkv.shape()), a.norm, Tensor({1})),
      ShapeError);
}

TEST_CASE("attention of no samples does nothing, and of no tokens is refused") {
  Workers crew(2);
  const auto run = [&](int64_t B, int64_t T) {
    const Tensor qkv({B, T, 24}), out({B, T, 8}), lse({B, 2, T});
    ops::attention_forward(crew.ctx, qkv, 2, out, lse);
    ops::attention_backward(crew.ctx, qkv, 2, out, lse, out, Tensor(qkv.shape()));
  };
  CHECK_NOTHROW(run(0, 3));
  CHECK_THROWS_WITH(run(3, 0), "[attention_forward] tokens per sample; got 0, expected at least 1");
}

TEST_CASE("attention refuses heads that are too wide, and says how wide they may be") {
  Workers one;
  const auto run = [&](int64_t D) {
    const Tensor qkv({1, 2, 3 * D}), out({1, 2, D}), lse({1, 1, 2});
    ops::attention_forward(one.ctx, qkv, 1, out, lse);
    ops::attention_backward(one.ctx, qkv, 1, out, lse, out, Tensor(qkv.shape()));
  };
  run(512);
  CHECK_THROWS_AS(run(513), ShapeError);
  CHECK_THROWS_WITH(run(513), "[attention_forward] width of a head; got 513, expected 1 to 512");
  const Tensor qkv({1, 2, 3 * 513}), out({1, 2, 513}), lse({1, 1, 2});
  CHECK_THROWS_WITH(ops::attention_backward(one.ctx, qkv, 1, out, lse, out, Tensor(qkv.shape())),
                    "[attention_backward] width of a head; got 513, expected 1 to 512");
}

TEST_CASE("tokens become patches of an image, and unpatchify is the reference's order") {
  Workers one;
  const int64_t B = 2, C = 3, H = 4, W = 8, P = 2;
  const Tensor tokens = random_tensor({B, (H / P) * (W / P), C * P * P}, 1), x({B, C, H, W}), rows(tokens.shape());
  const Tensor back(x.shape());
  ops::patchify_backward(one.ctx, tokens, P, x);
  const auto px = to_vector(x), pr = to_vector(tokens);
  const int64_t b = 1, c = 2, gy = 1, gx = 3, i = 0, j = 1, token = gy * (W / P) + gx;
  CHECK(pr[size_t(((b * 8 + token) * C + c) * P * P + i * P + j)] ==
        px[size_t(((b * C + c) * H + gy * P + i) * W + gx * P + j)]);
  ops::unpatchify_backward(one.ctx, x, P, rows);
  CHECK(to_vector(rows)[size_t((b * 8 + token) * C * P * P + (i * P + j) * C + c)] ==
        px[size_t(((b * C + c) * H + gy * P + i) * W + gx * P + j)]);
  ops::unpatchify(one.ctx, rows, P, back);
  CHECK(to_vector(back) == px);
}

namespace {

struct PatchGrid {
  int64_t P, V, gh, gw, C;
  int64_t K() const { return P + 2 * V; }
  int64_t H() const { return gh * P; }
  int64_t W() const { return gw * P; }
};
// f(pixel, element of the tokens, share of the token in the pixel) for every pair of a pixel and a column that has it;
// columns (c, i, j), or (i, j, c). The share falls in equal steps over the pixels that a token has in common with a
// neighbour, and all shares of a pixel are 1 together.
template <class F>
void for_pairs(const PatchGrid& g, int64_t B, bool channel_first, const F& f) {
  const int64_t K = g.K();
  const auto rise = [&](int64_t token, int64_t pixel) {
    const int64_t i = pixel - token * g.P + g.V;
    return i < 0 || i >= K ? 0.0 : double(std::min({i + 1, K - i, 2 * g.V + 1})) / double(2 * g.V + 1);
  };
  const auto share = [&](int64_t token, int64_t pixel, int64_t tokens) {
    double sum = 0;
    for (int64_t t = 0; t < tokens; ++t) sum += rise(t, pixel);
    return rise(token, pixel) / sum;
  };
  for (int64_t b = 0; b < B; ++b)
    for (int64_t c = 0; c < g.C; ++c)
      for (int64_t y = 0; y < g.H(); ++y)
        for (int64_t x = 0; x < g.W(); ++x)
          for (int64_t gy = 0; gy < g.gh; ++gy)
            for (int64_t gx = 0; gx < g.gw; ++gx) {
              const int64_t i = y - gy * g.P + g.V, j = x - gx * g.P + g.V;
              if (i < 0 || i >= K || j < 0 || j >= K) continue;
              const int64_t column = channel_first ? (c * K + i) * K + j : (i * K + j) * g.C + c;
              f(((b * g.C + c) * g.H() + y) * g.W() + x, ((b * g.gh + gy) * g.gw + gx) * g.C * K * K + column,
                share(gy, y, g.gh) * share(gx, x, g.gw));
            }
}

}  // namespace

TEST_CASE("patches that overlap: reading, predicting and their gradients against sums in f64, for any team") {
  const PatchGrid g = GENERATE(PatchGrid{2, 1, 3, 4, 3}, PatchGrid{4, 1, 2, 3, 2}, PatchGrid{4, 2, 3, 2, 1},
                               PatchGrid{4, 3, 4, 2, 2}, PatchGrid{3, 2, 1, 1, 2}, PatchGrid{5, 0, 2, 2, 3});
  CAPTURE(g.P, g.V, g.gh, g.gw, g.C);
  constexpr int64_t kB = 2;
  const ops::Patches patches(g.P, g.V);
  const Tensor image = random_tensor({kB, g.C, g.H(), g.W()}, 1),
               tokens = random_tensor({kB, g.gh * g.gw, g.C * g.K() * g.K()}, 2);
  const auto px = to_vector(image), pt = to_vector(tokens);
  std::vector<double> read(pt.size()), dimage(px.size()), predicted(px.size()), dtokens(pt.size()), shares(px.size());
  for_pairs(g, kB, /*channel_first=*/true, [&](int64_t pixel, int64_t element, double) {
    read[size_t(element)] = double(px[size_t(pixel)]);
    dimage[size_t(pixel)] += double(pt[size_t(element)]);
  });
  for_pairs(g, kB, /*channel_first=*/false, [&](int64_t pixel, int64_t element, double share) {
    predicted[size_t(pixel)] += share * double(pt[size_t(element)]);
    dtokens[size_t(element)] = share * double(px[size_t(pixel)]);
    shares[size_t(pixel)] += share;
  });
  for (const double share : shares) REQUIRE(share == Approx(1));  // of the reference
  const auto check = [&](const std::vector<double>& want, const Tensor& from, const Tensor& like, auto op) {
    const std::vector<float> got = on_teams([&](ops::Context& ctx) {
      const Tensor to = random_tensor(like.shape(), 3, NAN);  // all is overwritten
      op(ctx, from, patches, to);
      return to;
    });
    for (size_t i = 0; i < want.size(); ++i) REQUIRE(double(got[i]) == Approx(want[i]).epsilon(1e-6).margin(1e-6));
  };
  check(read, image, tokens, ops::patchify);
  check(dimage, tokens, image, ops::patchify_backward);
  check(predicted, tokens, image, ops::unpatchify);
  check(dtokens, image, tokens, ops::unpatchify_backward);
  Workers one;
  CHECK_THROWS_AS(ops::unpatchify(one.ctx, tokens, g.P + 1, image), ShapeError);
}

TEST_CASE("embedding adds up repeated rows and refuses labels outside the table") {
  const Tensor table = random_tensor({7, 12}, 1), dy = random_tensor({4, 12}, 2);
  const std::vector<int64_t> idx{3, 0, 3, 6};
  const auto grad = on_teams([&](ops::Context& ctx) {
    const Tensor d({7, 12});
    ops::embedding_backward(ctx, idx, dy, d);
    return d;
  });
  const auto p = to_vector(dy);
  CHECK(grad[3 * 12 + 5] == p[5] + p[2 * 12 + 5]);
  CHECK(grad[12] == 0);
  Workers one;
  CHECK_THROWS_WITH(ops::embedding_forward(one.ctx, table, {7}, Tensor({1, 12})),
                    Catch::Contains("got 7, expected 0 to 6"));
}

TEST_CASE("reductions do not depend on the team and find what is not finite") {
  for (int64_t n : {1, 1000, 200003}) {
    const Tensor x = random_tensor({n}, 1);
    double first = -1;
    for (int workers : {1, 2, 3, 8}) {
      parallel::Team team({.num_workers = workers});
      ops::Context ctx(team);
      const double sum = ops::sum_squares(ctx, x);
      if (first < 0) first = sum;
      CHECK(sum == first);
      CHECK(ops::find_non_finite(ctx, x) == -1);
      const auto set_middle = [&](float v) { Pin<float>{x}[n / 2] = v; };
      set_middle(INFINITY);
      CHECK(ops::find_non_finite(ctx, x) == n / 2);
      set_middle(NAN);
      CHECK(ops::find_non_finite(ctx, x) == n / 2);
      set_middle(0.5f);
      if (workers == 1) first = ops::sum_squares(ctx, x);
    }
    CHECK(first == Approx(dot(x, x)));
  }
}

TEST_CASE("ops refuse shapes that do not fit") {
  Workers one;
  const Tensor x({2, 3}), w({4, 5}), y({2, 4}), cond({2, 6});
  CHECK_THROWS_AS(ops::linear_forward(one.ctx, x, w, Tensor(), y), ShapeError);
  CHECK_THROWS_AS(ops::gelu_forward(one.ctx, x, y), ShapeError);
  const Tensor h({2, 3, 4});
  CHECK_THROWS_AS(ops::gate_residual_forward(one.ctx, h, {cond, 1}, h, h), ShapeError);
  CHECK_THROWS_AS(ops::embedding_forward(one.ctx, w, {-1}, Tensor({1, 5})), InputError);
}

TEST_CASE("noise of several keys: each its own sequence, the same bits for any team") {
  const std::vector<RandomKey> keys = {{1, Stream::kTest, 0}, {1, Stream::kTest, 1}, {2, Stream::kTest, 0}};
  for (const int64_t elements : {1, 37, 1024, 5000}) {
    const Tensor expected({3, elements});
    {
      const Pin<float> p(expected);
      for (int64_t i = 0; i < 3; ++i) kernels::fill_normal(keys[size_t(i)], 0, p + i * elements, elements);
    }
    const auto noise = on_teams([&](ops::Context& ctx) {
      const Tensor out({3, elements});
      ops::fill_normal(ctx, keys, elements, Pin<float>(out));
      return out;
    });
    CHECK(noise == to_vector(expected));
  }
}
