#include "ditrain/ops/linear.hpp"

#include <algorithm>
#include <deque>

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

GemmArgs forward_args(const Sizes& s, const float* x, const float* w, const float* b, float* y) {
  return {.m = s.m,
          .n = s.n,
          .k = s.k,
          .a = x,
          .lda = s.k,
          .b = w,
          .ldb = s.k,
          .trans_b = Trans::kYes,
          .c = y,
          .ldc = s.n,
          .bias = b};
}

// Columns in a piece of work: few enough to share out evenly, whole tiles of every kernel.
constexpr int64_t kPiece = 32;
int64_t num_pieces(const GemmArgs& args) { return (args.n + kPiece - 1) / kPiece; }

// Columns of all products, one after the other, cut into pieces; this worker's share of them.
void run_share(Context& ctx, const std::vector<GemmArgs>& products, const parallel::Worker& w) {
  int64_t total = 0, first = 0;
  for (const GemmArgs& p : products) total += num_pieces(p);
  const parallel::Range mine = parallel::partition(total, w.worker, w.num_workers);
  for (const GemmArgs& p : products) {
    const int64_t pieces = num_pieces(p);
    const int64_t begin = std::max(mine.begin - first, int64_t{0}) * kPiece;
    const int64_t end = std::min(std::min(mine.end - first, pieces) * kPiece, p.n);
    first += pieces;
    if (begin >= end) continue;
    const GemmArgs part = kernels::block_of(p, 0, p.m, begin, end - begin);
    kernels::gemm(part, ctx.scratch(w, kernels::gemm_scratch_bytes(part)));
  }
}

}  // namespace

void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) {
  const Sizes s = sizes("linear_forward", x, w, y);
  const Pin<float> px(x), pw(w), py(y), pb(b.defined() ? b : w);
  if (b.defined()) expect_shape("linear_forward", "b", b, {s.n});
  gemm(ctx, forward_args(s, px, pw, b.defined() ? pb.get() : nullptr, py));
}

void linear_forward_all(Context& ctx, const Tensor& x, const std::vector<LinearLayer>& layers) {
  const Pin<float> px(x);
  std::deque<Pin<float>> pins;
  std::vector<GemmArgs> products;
  for (const LinearLayer& l : layers) {
    const Sizes s = sizes("linear_forward_all", x, l.w, l.y);
    expect_shape("linear_forward_all", "b", l.b, {s.n});
    const float *w = pins.emplace_back(l.w), *b = pins.emplace_back(l.b);
    products.push_back(forward_args(s, px, w, b, pins.emplace_back(l.y)));
  }
  ctx.team().run([&](const parallel::Worker& w) { run_share(ctx, products, w); });
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
