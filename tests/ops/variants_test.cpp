// What block variants add to operators, against plain formulas in f64: values, and gradients by central differences of
// those formulas.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <vector>

#include "ditrain/ops/attention.hpp"
#include "ditrain/ops/linear.hpp"
#include "support/compare.hpp"
#include "support/random_tensor.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::test;

namespace {

using Numbers = std::vector<double>;

Numbers f64(const Tensor& t) {
  const Tensor wide(t.shape());
  copy(t, wide);
  const auto values = to_vector(wide);
  return {values.begin(), values.end()};
}

// d f / d x by central differences, whose error in f64 is about 1e-9.
Numbers differences(Numbers x, const std::function<double(const Numbers&)>& f) {
  constexpr double kStep = 1e-5;
  Numbers slope;
  for (double& value : x) {
    const double at = value;
    value = at + kStep;
    const double above = f(x);
    value = at - kStep;
    const double below = f(x);
    value = at;
    slope.push_back((above - below) / (2 * kStep));
  }
  return slope;
}

double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Tensor of_type(const Tensor& f32, DType type) {
  const Tensor t(f32.shape(), type);
  copy(f32, t);
  return t;
}

// f32: sums of some ten terms. bf16: values are rounded, 2^-9 each, a few times on the way.
double allowed(DType type) { return type == DType::kF32 ? 2e-6 : 1e-2; }

// y = silu(u) v with (u | v) = x w^T + b; rows of x.
Numbers swiglu(const Numbers& x, const Numbers& w, const Numbers& b, int64_t K, int64_t H) {
  Numbers y;
  for (size_t row = 0; row < x.size() / size_t(K); ++row)
    for (int64_t h = 0; h < H; ++h) {
      double of[2];
      for (int half = 0; half < 2; ++half) {
        const auto n = size_t(half * H + h);
        of[half] = b[n];
        for (int64_t k = 0; k < K; ++k) of[half] += x[row * size_t(K) + size_t(k)] * w[n * size_t(K) + size_t(k)];
      }
      y.push_back(of[0] / (1 + std::exp(-of[0])) * of[1]);
    }
  return y;
}

struct Heads {
  int64_t T, H, D, width;  // width: columns of the grid
};

// The pairs of a head's query or key at a token, turned by its row and column.
void turn(double* x, const Heads& s, int64_t token) {
  const int64_t half = s.D / 2;
  for (int64_t pair = 0; pair < s.D / 2; ++pair) {
    const bool of_row = 2 * pair < half;
    const int64_t j = of_row ? pair : pair - half / 2, at = of_row ? token / s.width : token % s.width;
    const double angle = double(at) * std::pow(10000.0, -4.0 * double(j) / double(s.D));
    const double a = x[2 * pair], b = x[2 * pair + 1];
    x[2 * pair] = a * std::cos(angle) - b * std::sin(angle);
    x[2 * pair + 1] = b * std::cos(angle) + a * std::sin(angle);
  }
}

// Attention of one sample, [T, 3 H D] to [T, H D]; places: of its tokens, if they are not all of the grid.
Numbers attention(Numbers qkv, const Heads& s, const std::vector<int64_t>& places = {}) {
  const auto at = [&](int64_t t, int64_t part, int64_t h) { return ((t * 3 + part) * s.H + h) * s.D; };
  for (int64_t t = 0; t < s.T; ++t)
    for (int64_t h = 0; h < s.H; ++h)
      for (const int64_t part : {0, 1}) turn(qkv.data() + at(t, part, h), s, places.empty() ? t : places[size_t(t)]);
  Numbers out(size_t(s.T * s.H * s.D));
  for (int64_t h = 0; h < s.H; ++h)
    for (int64_t t = 0; t < s.T; ++t) {
      Numbers p;
      double sum = 0;
      for (int64_t o = 0; o < s.T; ++o) {
        double score = 0;
        for (int64_t j = 0; j < s.D; ++j) score += qkv[size_t(at(t, 0, h) + j)] * qkv[size_t(at(o, 1, h) + j)];
        p.push_back(std::exp(score / std::sqrt(double(s.D)))), sum += p.back();
      }
      for (int64_t o = 0; o < s.T; ++o)
        for (int64_t j = 0; j < s.D; ++j)
          out[size_t((t * s.H + h) * s.D + j)] += p[size_t(o)] / sum * qkv[size_t(at(o, 2, h) + j)];
    }
  return out;
}

}  // namespace

TEST_CASE("SwiGLU after a product: values and gradients are those of f64") {
  const DType type = GENERATE(DType::kF32, DType::kBF16);
  Workers one;
  const int64_t M = 5, K = 7, H = 6, N = 4;
  const Tensor x = of_type(random_tensor({1, M, K}, 1), type), w = of_type(random_tensor({2 * H, K}, 2), type),
               b = random_tensor({2 * H}, 3), w3 = of_type(random_tensor({N, H}, 4), type),
               dz = of_type(random_tensor({1, M, N}, 5), type);
  const Tensor u_v({1, M, 2 * H}, type), y({1, M, H}, type), again({1, M, H}, type), du_v({1, M, 2 * H}, type),
      dx({1, M, K}), dw({2 * H, K}), db({2 * H});
  ops::linear_forward(one.ctx, x, w, b, u_v, ops::then_swiglu(y));
  ops::linear_backward_data(one.ctx, dz, w3, du_v, false, ops::times_swiglu_slope(u_v, again));
  ops::linear_backward_data(one.ctx, du_v, w, dx);
  ops::linear_backward_weight(one.ctx, x, du_v, dw, db, false);
  // The sum of dz (w3 y): the gradient by y is dz w3.
  Numbers dy(size_t(M * H));
  const Numbers third = f64(w3), dz64 = f64(dz);
  for (int64_t m = 0; m < M; ++m)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t n = 0; n < N; ++n) dy[size_t(m * H + h)] += dz64[size_t(m * N + n)] * third[size_t(n * H + h)];
  const Numbers x64 = f64(x), w64 = f64(w), b64 = f64(b);
  CHECK(relative_l2(f64(y), swiglu(x64, w64, b64, K, H)) < allowed(type));
  CHECK(f64(again) == f64(y));
  const auto by_x = [&](const Numbers& v) { return dot(dy, swiglu(v, w64, b64, K, H)); };
  const auto by_w = [&](const Numbers& v) { return dot(dy, swiglu(x64, v, b64, K, H)); };
  const auto by_b = [&](const Numbers& v) { return dot(dy, swiglu(x64, w64, v, K, H)); };
  CHECK(relative_l2(f64(dx), differences(x64, by_x)) < allowed(type));
  CHECK(relative_l2(f64(dw), differences(w64, by_w)) < allowed(type));
  CHECK(relative_l2(f64(db), differences(b64, by_b)) < allowed(type));
}

TEST_CASE("attention with rotary embedding: values and gradients are those of f64") {
  const DType type = GENERATE(DType::kF32, DType::kBF16);
  Workers one;
  const Heads s{.T = 6, .H = 2, .D = 8, .width = 3};
  const Tensor qkv = of_type(random_tensor({1, s.T, 3 * s.H * s.D}, 1), type),
               dout = of_type(random_tensor({1, s.T, s.H * s.D}, 2), type);
  const Tensor out(dout.shape(), type), lse({1, s.H, s.T}), dqkv(qkv.shape(), type);
  const ops::Rotation rotation{.grid_height = 2, .grid_width = 3};
  ops::attention_forward(one.ctx, qkv, s.H, out, lse, {}, rotation);
  ops::attention_backward(one.ctx, qkv, s.H, out, lse, dout, dqkv, {}, {}, rotation);
  const Numbers qkv64 = f64(qkv), dout64 = f64(dout);
  CHECK(relative_l2(f64(out), attention(qkv64, s)) < allowed(type));
  const auto loss = [&](const Numbers& v) { return dot(dout64, attention(v, s)); };
  CHECK(relative_l2(f64(dqkv), differences(qkv64, loss)) < allowed(type));
}

TEST_CASE("rotary embedding of some tokens of a grid turns each by its own place") {
  const DType type = GENERATE(DType::kF32, DType::kBF16);
  Workers one;
  const Heads s{.T = 4, .H = 2, .D = 8, .width = 3};
  const std::vector<int64_t> places{1, 5, 4, 0, 0, 2, 3, 5};  // of two samples, on a grid of 2 x 3
  const Tensor qkv = of_type(random_tensor({2, s.T, 3 * s.H * s.D}, 1), type),
               dout = of_type(random_tensor({2, s.T, s.H * s.D}, 2), type);
  const Tensor out(dout.shape(), type), lse({2, s.H, s.T}), dqkv(qkv.shape(), type);
  const ops::Rotation rotation{.grid_height = 2, .grid_width = 3, .places = places.data()};
  ops::attention_forward(one.ctx, qkv, s.H, out, lse, {}, rotation);
  ops::attention_backward(one.ctx, qkv, s.H, out, lse, dout, dqkv, {}, {}, rotation);
  for (int64_t b = 0; b < 2; ++b) {
    const std::vector<int64_t> of_sample(places.begin() + b * s.T, places.begin() + (b + 1) * s.T);
    const Numbers qkv64 = f64(qkv.rows(b, b + 1)), dout64 = f64(dout.rows(b, b + 1));
    CHECK(relative_l2(f64(out.rows(b, b + 1)), attention(qkv64, s, of_sample)) < allowed(type));
    const auto loss = [&](const Numbers& v) { return dot(dout64, attention(v, s, of_sample)); };
    CHECK(relative_l2(f64(dqkv.rows(b, b + 1)), differences(qkv64, loss)) < allowed(type));
  }
}
