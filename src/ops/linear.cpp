#include "ditrain/ops/linear.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/kernels/gemm.hpp"

namespace ditrain::ops {
namespace {

using kernels::GemmArgs;
using kernels::Trans;

// Cuts of a product: each worker gets a block of c. Rows and columns are cut so that the blocks are near square (least
// packing), at multiples that keep register tiles whole (28 = 2 x 14 rows, 32 columns).
constexpr int64_t kRowGrain = 28, kColumnGrain = 32;

// How many parts the rows get. All cuts give blocks of about the same area, so the least mm^2 + nn^2 is the most square
// one, which packs least of a and b (mm + nn rows of k); fewer rows than a grain cost as much as a grain.
int row_parts(int num_workers, int64_t m, int64_t n) {
  int best = 1;
  double best_cost = 1e300;
  for (int rows = 1; rows <= num_workers; ++rows) {
    if (num_workers % rows != 0) continue;
    const int columns = num_workers / rows;
    const double mm = double((m + rows - 1) / rows), nn = double((n + columns - 1) / columns);
    const double packing = double(std::max<int64_t>(kRowGrain, (m + rows - 1) / rows)) * mm + nn * nn;
    // Fewer than about 4 rows or 16 columns a worker: only if every cut is like that.
    const double too_fine = (rows > m / 4 + 1 ? 1e12 : 0) + (columns > n / 16 + 1 ? 1e12 : 0);
    if (packing + too_fine < best_cost) best_cost = packing + too_fine, best = rows;
  }
  return best;
}

void gemm(Context& ctx, const GemmArgs& whole) {
  const int workers = ctx.team().num_workers();
  const int rows = row_parts(workers, whole.m, whole.n), columns = workers / rows;
  ctx.team().run([&](const parallel::Worker& w) {
    const parallel::Range r = parallel::partition(whole.m, w.worker / columns, rows, kRowGrain);
    const parallel::Range c = parallel::partition(whole.n, w.worker % columns, columns, kColumnGrain);
    if (r.empty() || c.empty()) return;
    GemmArgs part = whole;
    part.m = r.size(), part.n = c.size();
    part.a += whole.trans_a == Trans::kNo ? r.begin * whole.lda : r.begin;
    part.b += whole.trans_b == Trans::kNo ? c.begin : c.begin * whole.ldb;
    part.c += r.begin * whole.ldc + c.begin;
    if (whole.bias != nullptr) part.bias += c.begin;
    kernels::gemm(part, ctx.scratch(w, kernels::gemm_scratch_bytes(part.m, part.n, part.k)));
  });
}

struct Sizes {
  int64_t m, n, k;
};
Sizes sizes(const char* op, const Tensor& x, const Tensor& w, const Tensor& y) {
  const int64_t n = w.dim(0), k = n ? w.size() / n : 0;
  const int64_t m = k ? x.size() / k : 0;
  if (x.size() != m * k || x.shape().back() != k || y.size() != m * n || y.shape().back() != n)
    throw ShapeError({.where = op,
                      .what = "shapes do not fit the weight " + to_string(w.shape()),
                      .got = to_string(x.shape()) + " and " + to_string(y.shape())});
  return {m, n, k};
}

}  // namespace

void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) {
  const auto [m, n, k] = sizes("linear_forward", x, w, y);
  const Pin<float> px(x), pw(w), py(y), pb(b.defined() ? b : w);
  if (b.defined()) expect_shape("linear_forward", "b", b, {n});
  gemm(ctx, {.m = m,
             .n = n,
             .k = k,
             .a = px,
             .lda = k,
             .b = pw,
             .ldb = k,
             .trans_b = Trans::kYes,
             .c = py,
             .ldc = n,
             .bias = b.defined() ? pb.get() : nullptr});
}

void linear_backward_data(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx, bool accumulate) {
  const auto [m, n, k] = sizes("linear_backward_data", dx, w, dy);
  const Pin<float> pdy(dy), pw(w), pdx(dx);
  gemm(ctx,
       {.m = m, .n = k, .k = n, .a = pdy, .lda = n, .b = pw, .ldb = k, .c = pdx, .ldc = k, .accumulate = accumulate});
}

void linear_backward_weight(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& db) {
  const auto [m, n, k] = sizes("linear_backward_weight", x, dw, dy);
  const Pin<float> px(x), pdy(dy), pdw(dw);
  gemm(ctx, {.m = n,
             .n = k,
             .k = m,
             .a = pdy,
             .lda = n,
             .trans_a = Trans::kYes,
             .b = px,
             .ldb = k,
             .c = pdw,
             .ldc = k,
             .accumulate = true});
  if (!db.defined()) return;
  expect_shape("linear_backward_weight", "db", db, {n});
  const Pin<float> pdb(db);
  ctx.for_range(n, 16, [&, m = m, n = n](int64_t begin, int64_t end, const parallel::Worker&) {
    kernels::column_sums(pdy + begin, n, pdb + begin, m, end - begin);
  });
}

}  // namespace ditrain::ops
