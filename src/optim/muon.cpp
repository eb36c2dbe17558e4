// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon): the momentum of a matrix, made nearly
// orthogonal, is its update. Only matrices of blocks are updated so, their single state is the momentum; all other
// parameters have AdamW.
//
//   v <- 0.95 v + 0.05 g;  u = Newton-Schulz(0.05 g + 0.95 v);  w <- (1 - lr weight_decay) w - lr s u;  then EMA
//
// s = sqrt(max(1, rows / columns)); lr is Config::muon_lr with the schedule of Config::lr. Sums are f32; where the
// store has a bf16 copy of the weights, operands of products are rounded to bf16.

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
        gram(next + m.size()),
        left(gram + m.shorter() * m.shorter()),
        polynomial(left + m.shorter() * m.shorter()) {}
  static size_t bytes(const Matrix& m) { return size_t(2 * m.size() + 3 * m.shorter() * m.shorter()) * sizeof(float); }
  float *x, *next, *gram, *left, *polynomial;
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

// y = scale x + shift on the diagonal, n x n.
void scale_and_shift(ops::Context& ctx, float scale, const float* x, float shift, float* y, int64_t n) {
  ctx.for_range(ops::WorkKind::kOptimizer, n, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t i = begin; i < end; ++i) {
      if (x != y) kernels::scale_add(scale, x + i * n, 0, x + i * n, y + i * n, n);
      y[i * n + i] += shift;
    }
  });
}

// c = op(a) op(b) with contiguous arrays; `columns` is the row length of a or b as it is stored.
void product(ops::Context& ctx, DType arithmetic, const Matrix& c, int64_t k, const float* a, Trans trans_a,
             const float* b, Trans trans_b, float* out) {
  ops::gemm(ctx, {.m = c.rows,
                  .n = c.columns,
                  .k = k,
                  .a = a,
                  .lda = trans_a == Trans::kYes ? c.rows : k,
                  .trans_a = trans_a,
                  .b = b,
                  .ldb = trans_b == Trans::kYes ? k : c.columns,
                  .trans_b = trans_b,
                  .c = out,
                  .ldc = c.columns,
                  .arithmetic = arithmetic});
}

// Leaves X, made nearly orthogonal, in arrays.x. With S = X X^T, or X^T X if X has more rows than columns, each
// iteration is X <- (a I + S (b I + c S)) X, or X (...).
void orthogonalise(ops::Context& ctx, DType arithmetic, const Matrix& m, Arrays& arrays) {
  const bool tall = m.rows > m.columns;
  const int64_t n = m.shorter();
  const Matrix square{n, n};
  normalise(ctx, arrays.x, m.size());
  for (int i = 0; i < kIterations; ++i) {
    if (tall)
      product(ctx, arithmetic, square, m.rows, arrays.x, Trans::kYes, arrays.x, Trans::kNo, arrays.gram);
    else
      product(ctx, arithmetic, square, m.columns, arrays.x, Trans::kNo, arrays.x, Trans::kYes, arrays.gram);
    scale_and_shift(ctx, kC, arrays.gram, kB, arrays.left, n);
    product(ctx, arithmetic, square, n, arrays.gram, Trans::kNo, arrays.left, Trans::kNo, arrays.polynomial);
    scale_and_shift(ctx, 1, arrays.polynomial, kA, arrays.polynomial, n);
    if (tall)
      product(ctx, arithmetic, m, n, arrays.x, Trans::kNo, arrays.polynomial, Trans::kNo, arrays.next);
    else
      product(ctx, arithmetic, m, n, arrays.polynomial, Trans::kNo, arrays.x, Trans::kNo, arrays.next);
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

double newton_schulz_cost(const Parameter& p) {
  if (!is_matrix(p.group)) return 0;
  const Matrix m = matrix_of(p);
  const auto n = double(m.shorter());
  return double(p.stacked) * kIterations * (2 * double(m.size()) * n + n * n * n);
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
