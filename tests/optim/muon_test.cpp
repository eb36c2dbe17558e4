// Muon against plain loops in f64.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "ditrain/optim/optimizer.hpp"
#include "support/random_tensor.hpp"
#include "support/workers.hpp"

using namespace ditrain;
using namespace ditrain::test;

namespace {

using autograd::ParameterGroup;
using Numbers = std::vector<double>;

Numbers transposed(const Numbers& x, int64_t rows, int64_t columns) {
  Numbers y(x.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) y[size_t(j * rows + i)] = x[size_t(i * columns + j)];
  return y;
}

Numbers product(const Numbers& a, const Numbers& b, int64_t m, int64_t k, int64_t n) {
  Numbers c(size_t(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t p = 0; p < k; ++p)
      for (int64_t j = 0; j < n; ++j) c[size_t(i * n + j)] += a[size_t(i * k + p)] * b[size_t(p * n + j)];
  return c;
}

// As the authors write it, on a matrix that is turned to have no more rows than columns.
Numbers newton_schulz(Numbers x, int64_t rows, int64_t columns) {
  if (rows > columns) return transposed(newton_schulz(transposed(x, rows, columns), columns, rows), columns, rows);
  double squares = 0;
  for (const double v : x) squares += v * v;
  for (double& v : x) v /= std::sqrt(squares) + 1e-7;
  for (int step = 0; step < 5; ++step) {
    const Numbers gram = product(x, transposed(x, rows, columns), rows, columns, rows);
    const Numbers square = product(gram, gram, rows, rows, rows);
    Numbers factor(gram.size());
    for (size_t i = 0; i < gram.size(); ++i) factor[i] = -4.775 * gram[i] + 2.0315 * square[i];
    const Numbers change = product(factor, x, rows, rows, columns);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + change[i];
  }
  return x;
}

struct Sizes {
  int64_t rows, columns, stacked;
};

const optim::Config kConfig{.kind = optim::Kind::kMuon, .lr = 1e-3, .muon_lr = 0.02, .weight_decay = 0.1};
constexpr double kDecay = 0.9, kClip = 0.5;

// A matrix between two vectors, that AdamW updates.
struct Rig : Workers {
  Rig(const Sizes& s, DType precision, int workers) : Workers(workers) {
    before = &store.add("before", {21});
    matrix = &store.add({.name = "matrix",
                         .full_shape = {s.rows * s.stacked, s.columns},
                         .group = ParameterGroup::kBlockMatrix,
                         .stacked = s.stacked});
    after = &store.add("after", {40});
    store.allocate(autograd::ParameterStore::For::kTraining, precision, {.states = optim::state_arrays(kConfig)});
    for (const autograd::Parameter* p : {before, matrix, after}) copy(random_tensor(p->shape, 1), p->value);
    copy(store.values, store.ema);
  }
  void update(int64_t step) {
    for (const autograd::Parameter* p : {before, matrix, after})
      copy(random_tensor(p->shape, uint64_t(10 + step)), p->grad);
    const optim::StepSettings settings{.step = step, .lr = kConfig.lr / 2, .ema_decay = kDecay, .grad_scale = kClip};
    optim::update(ctx, kConfig, settings, store, {0, store.arena_size()});
  }
  autograd::ParameterStore store;
  autograd::Parameter *before, *matrix, *after;
};

Numbers f64(const Tensor& t) {
  const std::vector<float> x = to_vector(t);
  return {x.begin(), x.end()};
}

double norm_of_difference(const Numbers& a, const Numbers& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(squares);
}
double norm(const Numbers& a) { return norm_of_difference(a, Numbers(a.size())); }

}  // namespace

TEST_CASE("Muon: two steps of a matrix are those of plain loops in f64, and its neighbours have AdamW") {
  const Sizes s = GENERATE(Sizes{24, 24, 1}, Sizes{17, 65, 1}, Sizes{70, 19, 1}, Sizes{32, 32, 3}, Sizes{1, 33, 1},
                           Sizes{150, 270, 1}, Sizes{290, 261, 1});  // the last two: more than one block of a square
  const DType precision = GENERATE(DType::kF32, DType::kBF16);
  CAPTURE(s.rows, s.columns, s.stacked, precision);
  Rig rig(s, precision, 2);
  const int64_t size = s.rows * s.columns;
  Numbers w = f64(rig.matrix->value), ema = w, momentum(w.size()), steps(w.size());
  const Numbers start = w;
  const double lr = kConfig.muon_lr / 2;  // half of lr is due
  for (int64_t step = 0; step < 2; ++step) {
    rig.update(step);
    const Numbers g = f64(rig.matrix->grad);
    for (int64_t part = 0; part < s.stacked; ++part) {
      Numbers u(static_cast<size_t>(size));
      for (int64_t i = 0; i < size; ++i) {
        double& m = momentum[size_t(part * size + i)];
        const double scaled = kClip * g[size_t(part * size + i)];
        m = 0.95 * m + 0.05 * scaled;
        u[size_t(i)] = 0.05 * scaled + 0.95 * m;
      }
      u = newton_schulz(u, s.rows, s.columns);
      const double scale = lr * std::sqrt(std::max(1.0, double(s.rows) / double(s.columns)));
      for (int64_t i = 0; i < size; ++i) {
        const auto at = size_t(part * size + i);
        w[at] = w[at] * (1 - lr * kConfig.weight_decay) - scale * u[size_t(i)];
        steps[at] += scale * u[size_t(i)];
        ema[at] = kDecay * ema[at] + (1 - kDecay) * w[at];
      }
    }
  }
  // The five polynomials amplify an error by at most 3.4445^5 = 485, beside some 20 roundings of sums: in f32, with
  // 2^-24 each, 6e-4 of the update. In bf16 the factor of X at a singular value s = 1, 3.4445 - 4.775 + 2.0315 = 0.7,
  // is a difference of terms 15 times as large, made of operands that are rounded three times (2^-9): 0.09 of it. The
  // slope of the polynomial there is -0.7, so that iterations before the last one add as much again at most. Weights
  // of size 1 are rounded to 2^-24 in two updates and averages.
  const double of_update = precision == DType::kF32 ? 6e-4 : 0.18, rounding = 4 * std::ldexp(1.0, -24);
  const double allowed = of_update * norm(steps) + rounding * norm(start);
  CHECK(norm_of_difference(f64(rig.matrix->value), w) <= allowed);
  CHECK(norm_of_difference(f64(rig.store.view(rig.store.ema, *rig.matrix)), ema) <= allowed);
  const autograd::OptimizerState& kept = rig.store.state("momentum_buffer");
  const Tensor matrix = kept.of(rig.matrix->slice).slice(0, {rig.matrix->size()});
  CHECK(norm_of_difference(f64(matrix), momentum) <= rounding * norm(momentum));
  if (precision == DType::kBF16) {
    const Tensor rounded(rig.matrix->shape, DType::kBF16), a(rig.matrix->shape), b(rig.matrix->shape);
    copy(rig.matrix->value, rounded), copy(rounded, a), copy(rig.matrix->value_bf16, b);
    CHECK(to_vector(a) == to_vector(b));
  }

  autograd::ParameterStore plain;  // all of it with AdamW
  autograd::Parameter &first = plain.add("before", {21}), &last = plain.add("after", {40});
  plain.allocate(autograd::ParameterStore::For::kTraining, DType::kF32, {.states = optim::state_arrays()});
  for (autograd::Parameter* p : {&first, &last}) copy(random_tensor(p->shape, 1), p->value);
  for (int64_t step = 0; step < 2; ++step) {
    for (autograd::Parameter* p : {&first, &last}) copy(random_tensor(p->shape, uint64_t(10 + step)), p->grad);
    optim::adamw_ema_step(rig.ctx, kConfig, {.step = step, .lr = kConfig.lr / 2, .grad_scale = kClip}, plain);
  }
  CHECK(to_vector(rig.before->value) == to_vector(first.value));
  CHECK(to_vector(rig.after->value) == to_vector(last.value));
}

TEST_CASE("Muon: a long matrix that nearly lacks most directions is made as orthogonal as in f64") {
  const auto [rows, columns] = GENERATE(std::pair<int64_t, int64_t>{16, 64}, std::pair<int64_t, int64_t>{270, 130});
  Rig rig({rows, columns, 1}, DType::kF32, 2);
  const std::vector<float> left = to_vector(random_tensor({rows, 3}, 1)),
                           right = to_vector(random_tensor({3, columns}, 2)),
                           rest = to_vector(random_tensor({rows, columns}, 3));
  std::vector<float> g(rest.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      float& sum = g[size_t(i * columns + j)];
      sum = 1e-5f * rest[size_t(i * columns + j)];
      for (int64_t r = 0; r < 3; ++r) sum += left[size_t(i * 3 + r)] * right[size_t(r * columns + j)];
    }
  fill_zero(rig.store.values), fill_zero(rig.store.ema);
  std::copy(g.begin(), g.end(), Pin<float>(rig.matrix->grad).get());
  optim::update(rig.ctx, kConfig, {.lr = kConfig.lr, .ema_decay = kDecay}, rig.store, rig.matrix->slice);
  Numbers expected = newton_schulz(Numbers(g.begin(), g.end()), rows, columns);
  const double scale = -kConfig.muon_lr * std::sqrt(std::max(1.0, double(rows) / double(columns)));
  for (double& x : expected) x *= scale;
  CHECK(norm_of_difference(f64(rig.matrix->value), expected) < 6e-4 * norm(expected));
}

TEST_CASE("Muon: a matrix has no second moment, and the same bits for any team") {
  const Sizes s{70, 190, 2};
  Rig one(s, DType::kF32, 1);
  CHECK(one.store.state("exp_avg_sq").data.size() == 32 + 48);
  CHECK(one.store.state("momentum_buffer").data.size() == one.matrix->slice.size());
  for (int64_t step = 0; step < 2; ++step) one.update(step);
  for (const int workers : {2, 3, 8}) {
    Rig rig(s, DType::kF32, workers);
    for (int64_t step = 0; step < 2; ++step) rig.update(step);
    CHECK(to_vector(rig.store.values) == to_vector(one.store.values));
    CHECK(to_vector(rig.store.ema) == to_vector(one.store.ema));
    CHECK(to_vector(rig.store.state("momentum_buffer").data) == to_vector(one.store.state("momentum_buffer").data));
  }
}

TEST_CASE("Muon: the update of a matrix has singular values of about 1, and a gradient of 0 changes nothing") {
  Rig rig({24, 48, 1}, DType::kF32, 2);
  fill_zero(rig.store.values), fill_zero(rig.store.ema);
  copy(random_tensor(rig.matrix->shape, 3), rig.matrix->grad);
  optim::update(rig.ctx, kConfig, {.lr = kConfig.lr, .ema_decay = kDecay}, rig.store, rig.matrix->slice);
  const Numbers step = f64(rig.matrix->value);
  // Their squares add up to the square of the Frobenius norm; each is within 0.7 ... 1.2.
  CHECK(norm(step) / kConfig.muon_lr > 0.7 * std::sqrt(24.0));
  CHECK(norm(step) / kConfig.muon_lr < 1.2 * std::sqrt(24.0));

  Rig still({24, 48, 1}, DType::kF32, 2);
  fill_zero(still.store.values), fill_zero(still.store.grads);
  optim::update(still.ctx, kConfig, {.lr = kConfig.lr, .ema_decay = kDecay}, still.store, still.matrix->slice);
  CHECK(norm(f64(still.matrix->value)) == 0);
}
