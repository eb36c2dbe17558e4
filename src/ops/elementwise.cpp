#include "ditrain/ops/elementwise.hpp"

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/elementwise.hpp"

namespace ditrain::ops {
namespace {

constexpr int64_t kGrain = 1024;      // elements: 4 KiB, so that no two workers share a cache line
constexpr int64_t kColumnGrain = 16;  // columns: one cache line
constexpr int64_t kTokenBlock = 32;   // rows summed in one chain; the sums are 1/32 of what is read

struct PinnedChunk;

// Shapes of [B, T, C] work with conditioning.
struct Rows {
  int64_t B, T, C;
  explicit Rows(const Tensor& x) : B(x.dim(0)), T(x.dim(1)), C(x.dim(2)) {}

  // f(b, first row, rows) for each worker's rows, never crossing a sample.
  template <class F>
  void for_rows(Context& ctx, const F& f) const {
    ctx.for_range(B * T, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
      while (begin < end) {
        const int64_t b = begin / T, stop = std::min(end, (b + 1) * T);
        f(b, begin, stop - begin);
        begin = stop;
      }
    });
  }
  // f(b, first row, rows, sums) on blocks of kTokenBlock rows of one sample; f leaves S rows of C sums over the rows of
  // the block. Blocks are added in order into out[s](b).
  template <int S, class F>
  void for_blocks(Context& ctx, const PinnedChunk* const (&out)[S], const F& f) const;
};

// A pinned chunk; p(b) is the start of sample b's C values.
struct PinnedChunk {
  PinnedChunk(const char* op, const Chunk& chunk, const Rows& rows) : PinnedChunk(op, chunk, rows.B, rows.C) {}
  PinnedChunk(const char* op, const Chunk& chunk, int64_t B, int64_t C)
      : pin(chunk.cond), stride(chunk.cond.dim(1)), offset(chunk.index * C) {
    expect_chunk(op, chunk, B, C);
  }
  float* operator()(int64_t b) const { return pin.get() + b * stride + offset; }
  Pin<float> pin;
  int64_t stride, offset;
};

template <int S, class F>
void Rows::for_blocks(Context& ctx, const PinnedChunk* const (&out)[S], const F& f) const {
  const int64_t blocks = (T + kTokenBlock - 1) / kTokenBlock, width = S * C;
  auto* sums = static_cast<float*>(ctx.workspace(Workspace::kShared, size_t(B * blocks * width) * sizeof(float)));
  ctx.run(WorkKind::kElementwise, [&](const parallel::Worker& w) {
    const parallel::Range mine = parallel::partition(B * blocks, w.worker, w.num_workers);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const int64_t b = i / blocks, first = b * T + i % blocks * kTokenBlock;
      f(b, first, std::min(kTokenBlock, (b + 1) * T - first), sums + i * width);
    }
    ctx.barrier(w);
    const parallel::Range columns = parallel::partition(C, w.worker, w.num_workers, kColumnGrain);
    if (columns.empty()) return;
    for (int64_t b = 0; b < B; ++b) {
      for (int s = 0; s < S; ++s) {
        const float* x = sums + b * blocks * width + s * C + columns.begin;
        float* y = (*out[s])(b) + columns.begin;
        std::copy_n(x, columns.size(), y);
        for (int64_t i = 1; i < blocks; ++i) kernels::add(x + i * width, y, columns.size());
      }
    }
  });
}

// f(T{}) with the C++ type of an activation.
template <class F>
void with_type(const Tensor& t, const F& f) {
  t.dtype() == DType::kBF16 ? f(BFloat16{}) : f(float{});
}

// kernel(x + begin, y + begin, n) for each worker's elements of two tensors of one type.
template <class T, class Kernel>
void unary(Context& ctx, const char* op, const Tensor& x, const Tensor& y, Kernel kernel) {
  expect_shape(op, "result", y, x.shape());
  const Pin<T> px(x), py(y);
  ctx.for_range(x.size(), kGrain, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    kernel(px + begin, py + begin, end - begin);
  });
}

template <class T, class Kernel>
void unary_backward(Context& ctx, const char* op, const Tensor& x, const Tensor& dy, const Tensor& dx, Kernel kernel) {
  expect_shape(op, "dy", dy, x.shape());
  expect_shape(op, "dx", dx, x.shape());
  const Pin<T> px(x), pdy(dy), pdx(dx);
  ctx.for_range(x.size(), kGrain, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    kernel(px + begin, pdy + begin, pdx + begin, end - begin);
  });
}

}  // namespace

void expect_chunk(const char* op, const Chunk& chunk, int64_t B, int64_t C) {
  if (chunk.cond.defined() && chunk.cond.dim(0) == B && chunk.index >= 0 && (chunk.index + 1) * C <= chunk.cond.dim(1))
    return;
  throw ShapeError({.where = op,
                    .what = "conditioning, chunk " + std::to_string(chunk.index),
                    .got = chunk.cond.defined() ? to_string(chunk.cond.shape()) : "nothing",
                    .expected = "[" + std::to_string(B) + ", n " + std::to_string(C) + "]"});
}

void gelu_forward(Context& ctx, const Tensor& x, const Tensor& y) {
  with_type(x, [&](auto t) {
    using T = decltype(t);
    unary<T>(ctx, "gelu_forward", x, y, [](const T* a, T* b, int64_t n) { kernels::gelu_forward(a, b, n); });
  });
}
void gelu_backward(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  with_type(x, [&](auto t) {
    using T = decltype(t);
    unary_backward<T>(ctx, "gelu_backward", x, dy, dx,
                      [](const T* a, const T* b, T* c, int64_t n) { kernels::gelu_backward(a, b, c, n); });
  });
}
void gelu_erf_forward(Context& ctx, const Tensor& x, const Tensor& y) {
  with_type(x, [&](auto t) {
    using T = decltype(t);
    unary<T>(ctx, "gelu_erf_forward", x, y, [](const T* a, T* b, int64_t n) { kernels::gelu_erf_forward(a, b, n); });
  });
}
void gelu_erf_backward(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  with_type(x, [&](auto t) {
    using T = decltype(t);
    unary_backward<T>(ctx, "gelu_erf_backward", x, dy, dx,
                      [](const T* a, const T* b, T* c, int64_t n) { kernels::gelu_erf_backward(a, b, c, n); });
  });
}
void silu_forward(Context& ctx, const Tensor& x, const Tensor& y) {
  unary<float>(ctx, "silu_forward", x, y, kernels::silu_forward);
}
void silu_backward(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  unary_backward<float>(ctx, "silu_backward", x, dy, dx, kernels::silu_backward);
}
void add(Context& ctx, const Tensor& x, const Tensor& y) {
  unary<float>(ctx, "add", x, y, [](const float* a, float* b, int64_t n) { kernels::add(a, b, n); });
}

void to_bf16(Context& ctx, const Tensor& x, const Tensor& y) {
  expect_shape("to_bf16", "y", y, x.shape());
  const Pin<float> px(x);
  const Pin<BFloat16> py(y);
  ctx.for_range(x.size(), kGrain, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    kernels::convert(px + begin, py + begin, end - begin);
  });
}

void layer_norm_modulate_forward(Context& ctx, const Tensor& x, const Chunk& shift, const Chunk& scale, const Tensor& y,
                                 const Tensor& mean, const Tensor& rstd, NormKind kind, float eps) {
  constexpr const char* kOp = "layer_norm_modulate_forward";
  const Rows rows(x);
  expect_shape(kOp, "y", y, x.shape());
  expect_shape(kOp, "mean", mean, {rows.B, rows.T});
  expect_shape(kOp, "rstd", rstd, {rows.B, rows.T});
  const Pin<float> px(x), pmean(mean), prstd(rstd);
  const PinnedChunk pshift(kOp, shift, rows), pscale(kOp, scale, rows);
  with_type(y, [&](auto t) {
    const Pin<decltype(t)> py(y);
    rows.for_rows(ctx, [&](int64_t b, int64_t row, int64_t n) {
      const float* from = px + row * rows.C;
      auto* to = py + row * rows.C;
      if (kind == NormKind::kLayer)
        return kernels::layer_norm_modulate_forward(from, pshift(b), pscale(b), to, pmean + row, prstd + row, n, rows.C,
                                                    eps);
      // Row by row: what the statistics have read is in the cache.
      for (int64_t r = 0; r < n; ++r, from += rows.C, to += rows.C) {
        kernels::rms_norm_statistics(from, pmean + row + r, prstd + row + r, 1, rows.C, eps);
        kernels::layer_norm_apply(from, pmean + row + r, prstd + row + r, pshift(b), pscale(b), to, 1, rows.C);
      }
    });
  });
}

void layer_norm_statistics(Context& ctx, const Tensor& x, const Tensor& mean, const Tensor& rstd, NormKind kind,
                           float eps) {
  const Rows rows(x);
  expect_shape("layer_norm_statistics", "mean", mean, {rows.B, rows.T});
  expect_shape("layer_norm_statistics", "rstd", rstd, {rows.B, rows.T});
  const Pin<float> px(x), pmean(mean), prstd(rstd);
  const auto statistics = kind == NormKind::kLayer ? kernels::layer_norm_statistics : kernels::rms_norm_statistics;
  ctx.for_range(rows.B * rows.T, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    statistics(px + begin * rows.C, pmean + begin, prstd + begin, end - begin, rows.C, eps);
  });
}

void layer_norm_modulate_backward(Context& ctx, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                                  const Chunk& scale, const Tensor& dy, const Tensor& dx, const Chunk& dshift,
                                  const Chunk& dscale, NormKind kind) {
  constexpr const char* kOp = "layer_norm_modulate_backward";
  const Rows rows(x);
  for (const Tensor* t : {&dy, &dx}) expect_shape(kOp, "gradient", *t, x.shape());
  const Pin<float> px(x), pmean(mean), prstd(rstd), pdx(dx);
  const PinnedChunk pscale(kOp, scale, rows), pdshift(kOp, dshift, rows), pdscale(kOp, dscale, rows);
  with_type(dy, [&](auto t) {
    const Pin<decltype(t)> pdy(dy);
    const PinnedChunk* const sums[] = {&pdshift, &pdscale};
    rows.for_blocks(ctx, sums, [&](int64_t b, int64_t row, int64_t n, float* partial) {
      const int64_t first = row * rows.C;
      if (kind == NormKind::kRms)
        return kernels::rms_norm_modulate_backward(px + first, prstd + row, pscale(b), pdy + first, pdx + first,
                                                   partial, partial + rows.C, n, rows.C);
      kernels::layer_norm_modulate_backward(px + first, pmean + row, prstd + row, pscale(b), pdy + first, pdx + first,
                                            partial, partial + rows.C, n, rows.C);
    });
  });
}

void join_weight(Context& ctx, const Chunk& shift, const Chunk& scale, const Tensor& weight, const Tensor& joined) {
  constexpr const char* kOp = "join_weight";
  const int64_t B = joined.dim(0), C = joined.dim(1) / 2;
  expect_shape(kOp, "weight", weight, {C});
  const Pin<float> pw(weight), pjoined(joined);
  const PinnedChunk pshift(kOp, shift, B, C), pscale(kOp, scale, B, C);
  ctx.for_range(C, kColumnGrain, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t b = 0; b < B; ++b) {
      float *to = pjoined + 2 * b * C, *from = pscale(b);
      std::copy(pshift(b) + begin, pshift(b) + end, to + begin);
      for (int64_t j = begin; j < end; ++j) to[C + j] = float(double(pw[j]) * (1 + double(from[j])) - 1);
    }
  });
}

void split_weight_gradient(Context& ctx, const Chunk& scale, const Tensor& weight, const Chunk& dscale,
                           const Tensor& dweight, bool accumulate) {
  constexpr const char* kOp = "split_weight_gradient";
  const int64_t B = scale.cond.dim(0), C = weight.dim(0);
  expect_shape(kOp, "dweight", dweight, {C});
  const Pin<float> pw(weight), pdw(dweight);
  const PinnedChunk pscale(kOp, scale, B, C), pdscale(kOp, dscale, B, C);
  ctx.for_range(C, kColumnGrain, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t j = begin; j < end; ++j) {
      float sum = accumulate ? pdw[j] : 0.0f;
      for (int64_t b = 0; b < B; ++b) {
        float& d = pdscale(b)[j];
        sum += d * (1.0f + pscale(b)[j]);
        d *= pw[j];
      }
      pdw[j] = sum;
    }
  });
}

void join_affine(Context& ctx, const Tensor& weight, const Tensor& bias, const Tensor& joined) {
  const int64_t B = joined.dim(0), C = joined.dim(1) / 2;
  for (const Tensor* t : {&weight, &bias}) expect_shape("join_affine", "weight or bias", *t, {C});
  const Pin<float> pw(weight), pb(bias), pjoined(joined);
  ctx.for_range(C, kColumnGrain, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t b = 0; b < B; ++b) {
      float* to = pjoined + 2 * b * C;
      std::copy(pb + begin, pb + end, to + begin);
      for (int64_t j = begin; j < end; ++j) to[C + j] = pw[j] - 1;
    }
  });
}

void split_affine_gradient(Context& ctx, const Tensor& djoined, const Tensor& dweight, const Tensor& dbias,
                           bool accumulate) {
  const int64_t B = djoined.dim(0), C = djoined.dim(1) / 2;
  for (const Tensor* t : {&dweight, &dbias}) expect_shape("split_affine_gradient", "gradient", *t, {C});
  const Pin<float> pd(djoined), pdw(dweight), pdb(dbias);
  ctx.for_range(C, kColumnGrain, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    if (!accumulate) std::fill(pdw + begin, pdw + end, 0.0f), std::fill(pdb + begin, pdb + end, 0.0f);
    for (int64_t b = 0; b < B; ++b) {
      const float* d = pd + 2 * b * C;
      kernels::add(d + begin, pdb + begin, end - begin);
      kernels::add(d + C + begin, pdw + begin, end - begin);
    }
  });
}

void gate_residual_forward(Context& ctx, const Tensor& x, const Chunk& gate, const Tensor& h, const Tensor& y) {
  constexpr const char* kOp = "gate_residual_forward";
  const Rows rows(x);
  for (const Tensor* t : {&h, &y}) expect_shape(kOp, "operand", *t, x.shape());
  const Pin<float> px(x), py(y);
  const PinnedChunk pgate(kOp, gate, rows);
  with_type(h, [&](auto t) {
    const Pin<decltype(t)> ph(h);
    rows.for_rows(ctx, [&](int64_t b, int64_t row, int64_t n) {
      const int64_t first = row * rows.C;
      kernels::gate_residual_forward(px + first, pgate(b), ph + first, py + first, n, rows.C);
    });
  });
}

void gate_residual_backward(Context& ctx, const Tensor& dy, const Chunk& gate, const Tensor& h, const Tensor& dh,
                            const Chunk& dgate) {
  constexpr const char* kOp = "gate_residual_backward";
  const Rows rows(dy);
  for (const Tensor* t : {&h, &dh}) expect_shape(kOp, "operand", *t, dy.shape());
  const Pin<float> pdy(dy);
  const PinnedChunk pgate(kOp, gate, rows), pdgate(kOp, dgate, rows);
  with_type(h, [&](auto t) {
    const Pin<decltype(t)> ph(h), pdh(dh);
    const PinnedChunk* const sums[] = {&pdgate};
    rows.for_blocks(ctx, sums, [&](int64_t b, int64_t row, int64_t n, float* partial) {
      const int64_t first = row * rows.C;
      kernels::gate_residual_backward(pdy + first, pgate(b), ph + first, pdh + first, partial, n, rows.C);
    });
  });
}

double sum_squares(Context& ctx, const Tensor& x) {
  constexpr int64_t kPiece = 1 << 16;  // fixed, so that the order of the sum is too
  const int64_t pieces = (x.size() + kPiece - 1) / kPiece;
  std::vector<double> sums(size_t(pieces), 0.0);
  const Pin<float> p(x);
  ctx.for_range(pieces, 1, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    for (int64_t i = begin; i < end; ++i)
      sums[size_t(i)] = kernels::sum_squares(p + i * kPiece, std::min(kPiece, x.size() - i * kPiece));
  });
  double sum = 0;
  for (double s : sums) sum += s;
  return sum;
}

int64_t find_non_finite(Context& ctx, const Tensor& x) {
  std::vector<int64_t> first(size_t(ctx.num_workers()), -1);
  with_type(x, [&](auto t) {
    const Pin<decltype(t)> p(x);
    ctx.for_range(x.size(), kGrain, [&](int64_t begin, int64_t end, const parallel::Worker& w) {
      const int64_t i = kernels::find_non_finite(p + begin, end - begin);
      if (i >= 0) first[size_t(w.worker)] = begin + i;
    });
  });
  for (int64_t i : first)
    if (i >= 0) return i;
  return -1;
}

void zero(Context& ctx, const Tensor& x) {
  const Pin<float> p(x);
  ctx.for_range(x.size(), kGrain,
                [&](int64_t begin, int64_t end, const parallel::Worker&) { std::fill(p + begin, p + end, 0.0f); });
}

}  // namespace ditrain::ops
