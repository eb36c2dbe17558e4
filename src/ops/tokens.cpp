#include "ditrain/ops/tokens.hpp"

#include <algorithm>

#include "ditrain/kernels/elementwise.hpp"

namespace ditrain::ops {

void join_tokens(Context& ctx, const std::vector<Tensor>& extras, const Tensor& patches, const Tensor& pos,
                 const Tensor& x) {
  const int64_t B = x.dim(0), T = x.dim(1), C = x.dim(2);
  const auto E = int64_t(extras.size());
  for (const Tensor& extra : extras) expect_shape("join_tokens", "extra token", extra, {B, C});
  expect_shape("join_tokens", "patches", patches, {B, T - E, C});
  expect_shape("join_tokens", "pos", pos, {1, T, C});
  const Pin<float> ppatches(patches), ppos(pos), px(x);
  for (int64_t e = 0; e < E; ++e) {
    const Pin<float> pextra(extras[size_t(e)]);
    ctx.for_range(B, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      for (int64_t b = begin; b < end; ++b) std::copy_n(pextra + b * C, C, px + (b * T + e) * C);
    });
  }
  ctx.for_range(B * T, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / T, t = row % T;
      if (t >= E) std::copy_n(ppatches + (b * (T - E) + t - E) * C, C, px + row * C);
      kernels::add(ppos + t * C, px + row * C, C);
    }
  });
}

void split_tokens_gradient(Context& ctx, const Tensor& dx, const std::vector<Tensor>& dextras, const Tensor& dpatches,
                           const Tensor& dpos, bool accumulate) {
  const int64_t B = dx.dim(0), T = dx.dim(1), C = dx.dim(2);
  const auto E = int64_t(dextras.size());
  expect_shape("split_tokens_gradient", "dpatches", dpatches, {B, T - E, C});
  expect_shape("split_tokens_gradient", "dpos", dpos, {1, T, C});
  const Pin<float> pdx(dx), pdpos(dpos);
  last_tokens(ctx, dx, dpatches);
  for (int64_t e = 0; e < E; ++e) {
    if (!dextras[size_t(e)].defined()) continue;
    expect_shape("split_tokens_gradient", "extra token", dextras[size_t(e)], {B, C});
    const Pin<float> pextra(dextras[size_t(e)]);
    ctx.for_range(B, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      for (int64_t b = begin; b < end; ++b) std::copy_n(pdx + (b * T + e) * C, C, pextra + b * C);
    });
  }
  ctx.for_range(T, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t t = begin; t < end; ++t) {
      if (!accumulate) std::fill_n(pdpos + t * C, C, 0.0f);
      for (int64_t b = 0; b < B; ++b) kernels::add(pdx + (b * T + t) * C, pdpos + t * C, C);
    }
  });
}

void last_tokens(Context& ctx, const Tensor& x, const Tensor& y) {
  const int64_t B = x.dim(0), T = x.dim(1), C = x.dim(2), L = y.dim(1), E = T - L;
  expect_shape("last_tokens", "y", y, {B, L, C});
  const Pin<float> px(x), py(y);
  ctx.for_range(B * L, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t row = begin; row < end; ++row) std::copy_n(px + (row / L * T + E + row % L) * C, C, py + row * C);
  });
}

void last_tokens_gradient(Context& ctx, const Tensor& dy, const Tensor& dx) {
  const int64_t B = dx.dim(0), T = dx.dim(1), C = dx.dim(2), L = dy.dim(1), E = T - L;
  expect_shape("last_tokens_gradient", "dy", dy, {B, L, C});
  const Pin<float> pdy(dy), pdx(dx);
  ctx.for_range(B * T, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t t = row % T - E;
      if (t < 0)
        std::fill_n(pdx + row * C, C, 0.0f);
      else
        std::copy_n(pdy + (row / T * L + t) * C, C, pdx + row * C);
    }
  });
}

namespace {

// move(row of x, row of y, C) for every place.
template <class Move>
void for_places(Context& ctx, const char* op, const Tensor& x, const int64_t* places, const Tensor& y,
                const Move& move) {
  const int64_t B = x.dim(0), T = x.dim(1), C = x.dim(2), K = y.dim(1);
  expect_shape(op, "y", y, {B, K, C});
  const Pin<float> px(x), py(y);
  ctx.for_range(B * K, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t row = begin; row < end; ++row) move(px + (row / K * T + places[row]) * C, py + row * C, C);
  });
}

}  // namespace

void gather_tokens(Context& ctx, const Tensor& x, const int64_t* places, const Tensor& y) {
  for_places(ctx, "gather_tokens", x, places, y,
             [](const float* from, float* to, int64_t C) { std::copy_n(from, C, to); });
}

void scatter_tokens(Context& ctx, const Tensor& y, const int64_t* places, const Tensor& x) {
  for_places(ctx, "scatter_tokens", x, places, y,
             [](float* to, const float* from, int64_t C) { std::copy_n(from, C, to); });
}

namespace {

// move(row of y, row of a, row of b, C) for every row.
template <class Move>
void for_halves(Context& ctx, const char* op, const Tensor& y, const Tensor& a, const Tensor& b, const Move& move) {
  Shape half = y.shape();
  half.back() /= 2;
  for (const Tensor* t : {&a, &b}) expect_shape(op, "half", *t, half);
  const int64_t C = half.back();
  const Pin<float> py(y), pa(a), pb(b);
  ctx.for_range(a.size() / C, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t row = begin; row < end; ++row) move(py + 2 * row * C, pa + row * C, pb + row * C, C);
  });
}

}  // namespace

void concatenate(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& y) {
  for_halves(ctx, "concatenate", y, a, b, [](float* all, const float* first, const float* second, int64_t C) {
    std::copy_n(second, C, std::copy_n(first, C, all));
  });
}

void split(Context& ctx, const Tensor& y, const Tensor& a, const Tensor& b) {
  for_halves(ctx, "split", y, a, b, [](const float* all, float* first, float* second, int64_t C) {
    std::copy_n(all, C, first), std::copy_n(all + C, C, second);
  });
}

}  // namespace ditrain::ops
