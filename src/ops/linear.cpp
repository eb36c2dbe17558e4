#include "ditrain/ops/linear.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/ops/gemm.hpp"

namespace ditrain::ops {
namespace {

using kernels::GemmArgs;
using kernels::Trans;

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

void linear_backward_weight(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& db,
                            bool accumulate) {
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
             .accumulate = accumulate});
  if (!db.defined()) return;
  expect_shape("linear_backward_weight", "db", db, {n});
  const Pin<float> pdb(db);
  ctx.for_range(n, 16, [&, m = m, n = n](int64_t begin, int64_t end, const parallel::Worker&) {
    if (!accumulate) std::fill(pdb + begin, pdb + end, 0.0f);
    kernels::column_sums(pdy + begin, n, pdb + begin, m, end - begin);
  });
}

}  // namespace ditrain::ops
