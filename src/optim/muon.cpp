// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon): the momentum of a matrix, made nearly
// orthogonal, is its update. Only matrices of blocks are updated so, their single state is the momentum; all other
// parameters have AdamW.
//
//   v <- 0.95 v + 0.05 g;  u = Newton-Schulz(0.05 g + 0.95 v);  w <- (1 - lr weight_decay) w - lr s u;  then EMA
//
// s = sqrt(max(1, rows / columns)); lr is Config::muon_lr with the schedule of Config::lr. Sums are f32; where the
// store has a bf16 copy of the weights, operands of products are rounded to bf16.
//
// An iteration is X <- q(S) X with S = X X^T and q(S) = a I + b S + c S^2. All q commute with S and with each other:
// S <- q(S) S q(S), and the product of some q needs no X, which saves multiply-adds where X is long. In directions that
// X nearly lacks, errors of S grow by a^2 per iteration. After three of them S is made of X again: products of five
// were up to 0.8 % of the update off, those of three no more than without them (tests/bench/reports/2026-11-26-muon).
// bf16 is too coarse for any.

#include <algorithm>
#include <cmath>
#include <optional>

#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/ops/gemm.hpp"
#include "ditrain/optim/optimizer.hpp"

namespace ditrain::optim {
namespace {

using autograd::ArenaSlice;
using autograd::Parameter;
using autograd::ParameterGroup;
using autograd::ParameterStore;
using kernels::Trans;

bool is_matrix(ParameterGroup group) { return group == ParameterGroup::kBlockMatrix; }
bool is_other(ParameterGroup group) { return !is_matrix(group); }

constexpr double kMomentum = 0.95;
constexpr float kEps = 1e-7f;  // added to the Frobenius norm
constexpr int kIterations = 5;
constexpr float kA = 3.4445f, kB = -4.775f, kC = 2.0315f;  // of a X + b (X X^T) X + c (X X^T)^2 X

// One of the matrices of a parameter, [rows, columns].
struct Matrix {
  int64_t rows = 0, columns = 0;
  int64_t size() const { return rows * columns; }
  int64_t shorter() const { return std::min(rows, columns); }
};

Matrix matrix_of(const Parameter& p) {
  const int64_t rows = p.shape.at(0) / p.stacked;
  return {rows, p.size() / p.stacked / rows};
}

// Arrays of Newton-Schulz iterations in the workspace.
struct Arrays {
  Arrays(const Matrix& m, void* workspace)
      : x(static_cast<float*>(workspace)),
        next(x + m.size()),
        polynomial(next + m.size()),
        q(polynomial + m.shorter() * m.shorter()) {}
  static size_t bytes(const Matrix& m) { return size_t(2 * m.size() + 2 * m.shorter() * m.shorter()) * sizeof(float); }
  float *x, *next, *polynomial, *q;
};

template <class F>
void for_elements(ops::Context& ctx, int64_t n, const F& f) {
  ctx.for_range(ops::WorkKind::kOptimizer, n, kUpdateGrain,
                [&](int64_t begin, int64_t end, const parallel::Worker&) { f(begin, end - begin); });
}

// x /= its Frobenius norm, whose sum has parts of a constant length.
void normalise(ops::Context& ctx, float* x, int64_t n) {
  std::vector<double> squares(size_t((n + kUpdateGrain - 1) / kUpdateGrain));
  for_elements(ctx, n, [&](int64_t begin, int64_t count) {
    for (int64_t i = begin; i < begin + count; i += kUpdateGrain)
      squares[size_t(i / kUpdateGrain)] = kernels::sum_squares(x + i, std::min(kUpdateGrain, begin + count - i));
  });
  double sum = 0;
  for (const double s : squares) sum += s;
  const float scale = 1 / (float(std::sqrt(sum)) + kEps);
  for_elements(ctx, n, [&](int64_t begin, int64_t count) {
    kernels::scale_add(scale, x + begin, 0, x + begin, x + begin, count);
  });
}

// An array of the workspace, read as it lies or transposed; `columns` is the length of its rows.
struct Operand {
  const float* values;
  int64_t columns;
  Trans trans = Trans::kNo;
  Operand transposed() const { return {values, columns, trans == Trans::kNo ? Trans::kYes : Trans::kNo}; }
  Operand from_row(int64_t row) const {
    return {values + (trans == Trans::kYes ? row : row * columns), columns, trans};
  }
  Operand from_column(int64_t column) const { return transposed().from_row(column).transposed(); }
};

// out [c.rows, c.columns], with rows of `ldc` elements, = a b over k.
void product(ops::Context& ctx, DType arithmetic, const Matrix& c, int64_t k, const Operand& a, const Operand& b,
             float* out, int64_t ldc) {
  ops::gemm(ctx, {.m = c.rows,
                  .n = c.columns,
                  .k = k,
                  .a = a.values,
                  .lda = a.columns,
                  .trans_a = a.trans,
                  .b = b.values,
                  .ldb = b.columns,
                  .trans_b = b.trans,
                  .c = out,
                  .ldc = ldc,
                  .arithmetic = arithmetic});
}

// Rows of a block of a symmetric product: few enough to save work, enough for a fast GEMM.
constexpr int64_t block_rows(DType arithmetic) { return arithmetic == DType::kF32 ? 64 : 128; }
constexpr int64_t kTransposed = 16;  // rows and columns of a tile that is mirrored: a cache line each

// s [n, n] = x y, which is symmetric but for rounding, with k columns of x: blocks on and above the diagonal are
// computed, (n + block_rows) / 2n of the work of all; those below it are mirrored.
void symmetric_product(ops::Context& ctx, DType arithmetic, int64_t n, int64_t k, const Operand& x, const Operand& y,
                       float* s) {
  const int64_t block = block_rows(arithmetic);
  for (int64_t i = 0; i < n; i += block)
    product(ctx, arithmetic, {std::min(block, n - i), n - i}, k, x.from_row(i), y.from_column(i), s + i * n + i, n);
  const int64_t tiles = (n + kTransposed - 1) / kTransposed;
  const auto mirror_rows = [&](int64_t tile) {
    const int64_t begin = tile * kTransposed, end = std::min(begin + kTransposed, n);
    for (int64_t left = 0; left < begin / block * block; left += kTransposed)
      for (int64_t i = begin; i < end; ++i)
        for (int64_t j = left; j < left + kTransposed; ++j) s[i * n + j] = s[j * n + i];
  };
  // Rows far down have more to mirror: each worker takes as many of them as of those at the top.
  ctx.for_range(ops::WorkKind::kOptimizer, (tiles + 1) / 2, 1,
                [&](int64_t begin, int64_t end, const parallel::Worker&) {
                  for (int64_t tile = begin; tile < end; ++tile) {
                    mirror_rows(tile);
                    if (tiles - 1 - tile > tile) mirror_rows(tiles - 1 - tile);
                  }
                });
}

// q = a I + b s + c s^2, all of them [n, n].
void polynomial_of(ops::Context& ctx, DType arithmetic, int64_t n, const float* s, float* q) {
  symmetric_product(ctx, arithmetic, n, n, {s, n}, {s, n}, q);
  ctx.for_range(ops::WorkKind::kOptimizer, n, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t row = begin; row < end; ++row) {
      float* p = q + row * n;
      kernels::scale_add(kC, p, kB, s + row * n, p, n);
      p[row] += kA;
    }
  });
}

// Iterations of which the product of the q multiplies X. (With several, twice n^2 numbers fit into an array of X.)
int iterations_at_once(DType arithmetic, const Matrix& m) {
  return arithmetic == DType::kF32 && std::max(m.rows, m.columns) >= 2 * m.shorter() ? 3 : 1;
}

// Leaves in `result` the product of the q of `count` iterations, given S in `s`, which is overwritten; `q` and `spare`
// are scratch of the same size, unused for one iteration.
void product_of_polynomials(ops::Context& ctx, DType arithmetic, int64_t n, int count, float* s, float* q,
                            float* result, float* spare) {
  const auto multiply = [&](const float* a, const float* b, float* c) {
    symmetric_product(ctx, arithmetic, n, n, {a, n}, {b, n}, c);
  };
  if (count % 2 == 0) std::swap(result, spare);  // count - 1 times below
  for (int i = 0; i < count; ++i) {
    float* const factor = i == 0 ? result : q;
    polynomial_of(ctx, arithmetic, n, s, factor);
    if (i > 0) multiply(factor, result, spare), std::swap(result, spare);
    if (i + 1 < count) multiply(factor, s, spare), multiply(spare, factor, s);
  }
}

// Leaves X, made nearly orthogonal, in arrays.x. With S = X X^T, or X^T X if X has more rows than columns, each
// iteration is X <- q(S) X, or X q(S).
void orthogonalise(ops::Context& ctx, DType arithmetic, const Matrix& m, Arrays& arrays) {
  static_assert(block_rows(DType::kF32) % kTransposed == 0 && block_rows(DType::kBF16) % kTransposed == 0);
  const bool tall = m.rows > m.columns;
  const int64_t n = m.shorter(), longer = std::max(m.rows, m.columns);
  const int at_once = iterations_at_once(arithmetic, m);
  normalise(ctx, arrays.x, m.size());
  for (int i = 0; i < kIterations; i += at_once) {
    const Operand x{arrays.x, m.columns}, across = tall ? x.transposed() : x, factor{arrays.polynomial, n};
    float* const gram = arrays.next;  // and n^2 numbers behind it, until the new X is written there
    symmetric_product(ctx, arithmetic, n, longer, across, across.transposed(), gram);
    product_of_polynomials(ctx, arithmetic, n, std::min(at_once, kIterations - i), gram, arrays.q, arrays.polynomial,
                           gram + n * n);
    product(ctx, arithmetic, m, n, tall ? x : factor, tall ? factor : x, arrays.next, m.columns);
    std::swap(arrays.x, arrays.next);
  }
}

void update_matrices(ops::Context& ctx, const Config& config, const StepSettings& settings, ParameterStore& store,
                     const Parameter& p) {
  const Matrix m = matrix_of(p);
  const ArenaSlice slice = p.slice;
  const Pin<float> values(store.values.slice(slice.begin, {p.size()})), grads(store.gradients_of(slice)),
      momentum(store.state("momentum_buffer").of(slice)), ema(store.kept.of(store.ema, slice));
  std::optional<Pin<BFloat16>> copy;
  if (store.values_bf16.defined()) copy.emplace(store.values_bf16.slice(slice.begin, {p.size()}));
  const DType arithmetic = copy ? DType::kBF16 : DType::kF32;
  const double lr = settings.lr * config.muon_lr / config.lr;  // the schedule of lr
  const auto step = float(lr * std::sqrt(std::max(1.0, double(m.rows) / double(m.columns))));
  const auto kept = float(1 - lr * config.weight_decay), fresh_ema = float(1 - settings.ema_decay);
  const auto old = float(kMomentum), fresh = float((1 - kMomentum) * settings.grad_scale);
  void* workspace = ctx.workspace(ops::Workspace::kOptimizer, Arrays::bytes(m));
  for (int64_t i = 0; i < p.stacked; ++i) {
    Arrays arrays(m, workspace);
    const int64_t first = i * m.size();
    for_elements(ctx, m.size(), [&](int64_t begin, int64_t n) {
      const float* g = grads + first + begin;
      float* v = momentum + first + begin;
      kernels::scale_add(old, v, fresh, g, v, n);
      kernels::scale_add(old, v, fresh, g, arrays.x + begin, n);  // Nesterov
    });
    orthogonalise(ctx, arithmetic, m, arrays);
    for_elements(ctx, m.size(), [&](int64_t begin, int64_t n) {
      float *w = values + first + begin, *average = ema + first + begin;
      kernels::scale_add(kept, w, -step, arrays.x + begin, w, n);
      kernels::move_average(fresh_ema, w, average, n);
      if (copy) kernels::convert(w, *copy + first + begin, n);
    });
  }
}

void update_slice(ops::Context& ctx, const Config& config, const StepSettings& settings, ParameterStore& parameters,
                  const ArenaSlice& slice) {
  ArenaSlice others{slice.begin, slice.begin};  // neighbours that AdamW updates in one pass
  const auto update_others = [&] {
    if (others.size() > 0) adamw_ema_step(ctx, config, settings, parameters, others);
  };
  for (const Parameter* p : parameters.in_arena()) {
    if (p->slice.end <= slice.begin || p->slice.begin >= slice.end) continue;
    if (!is_matrix(p->group)) {
      others.end = std::min(p->slice.end, slice.end);
      continue;
    }
    update_others();
    update_matrices(ctx, config, settings, parameters, *p);
    others = {p->slice.end, p->slice.end};
  }
  update_others();
}

double newton_schulz_cost(const Parameter& p, DType arithmetic) {
  if (!is_matrix(p.group)) return 0;
  const Matrix m = matrix_of(p);
  const auto n = double(m.shorter()), square = n * n * n, whole = double(m.size()) * n;
  const double of_square = std::min(1.0, (n + double(block_rows(arithmetic))) / (2 * n));  // of symmetric_product
  const int at_once = iterations_at_once(arithmetic, m), times = (kIterations + at_once - 1) / at_once;
  const int squares = 4 * kIterations - 3 * times;
  return double(p.stacked) * (times * (1 + of_square) * whole + squares * of_square * square);
}

size_t workspace_of_largest(const ParameterStore& layout) {
  size_t bytes = 0;
  for (const Parameter* p : layout.in_arena())
    if (is_matrix(p->group)) bytes = std::max(bytes, Arrays::bytes(matrix_of(*p)));
  return bytes;
}

}  // namespace

Algorithm muon() {
  return {.kind = Kind::kMuon,
          .states = {{.name = "momentum_buffer", .title = "momentum", .has = is_matrix},
                     {.name = "exp_avg", .title = "first moments", .has = is_other},
                     {.name = "exp_avg_sq", .title = "second moments", .has = is_other}},
          .whole_cost = newton_schulz_cost,
          .update = update_slice,
          .workspace_bytes = workspace_of_largest};
}

}  // namespace ditrain::optim
