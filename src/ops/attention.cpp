#include "ditrain/ops/attention.hpp"

#include <cmath>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/attention.hpp"
#include "ditrain/kernels/gemm.hpp"

namespace ditrain::ops {
namespace {

static_assert(kernels::kMostHeadDim <= kernels::kSumChunk);

struct Sizes {
  int64_t B, T, H, D;
  Sizes(const char* op, const Tensor& qkv, int64_t heads, const Tensor& out, const Tensor& lse)
      : B(qkv.dim(0)), T(qkv.dim(1)), H(heads), D(qkv.dim(2) / (3 * heads)) {
    expect_shape(op, "qkv", qkv, {B, T, 3 * H * D});
    expect_shape(op, "out", out, {B, T, H * D});
    expect_shape(op, "lse", lse, {B, H, T});
    if (D < 1 || D > kernels::kMostHeadDim)
      throw ShapeError({.where = op,
                        .what = "width of a head",
                        .got = std::to_string(D),
                        .expected = "1 to " + std::to_string(kernels::kMostHeadDim)});
  }
  int64_t qkv_offset(int64_t b, int64_t h) const { return b * T * 3 * H * D + h * D; }
  int64_t out_offset(int64_t b, int64_t h) const { return b * T * H * D + h * D; }
  // `next`: elements to q of the head that is taken next.
  template <class E>
  kernels::AttentionHead head(const E* qkv, int64_t b, int64_t h, int64_t next) const {
    const E* q = qkv + qkv_offset(b, h);
    return {.tokens = T,
            .head_dim = D,
            .q = q,
            .k = q + H * D,
            .v = q + 2 * H * D,
            .qkv_stride = 3 * H * D,
            .out_stride = H * D,
            .scale = float(1.0 / std::sqrt(double(D))),
            .type = kDTypeOf<E>,
            .next = next};
  }
};

// f(b, h, next, worker) for each worker's heads of all samples: in runs of samples, or of heads where those go to
// clusters. next: elements of qkv from this head to the worker's next one, 0 for its last.
template <class F>
void for_heads(Context& ctx, const Sizes& s, const F& f) {
  const bool by_cluster = ctx.cuts_columns();
  ctx.run(WorkKind::kAttention, [&](const parallel::Worker& w) {
    parallel::Range heads{0, s.H};
    if (by_cluster) heads = parallel::partition(s.H, w.cluster, w.num_clusters);
    const int64_t number = by_cluster ? w.worker_in_cluster : w.worker;
    const int64_t workers = by_cluster ? w.workers_in_cluster : w.num_workers, each = heads.size();
    const parallel::Range mine = parallel::partition(s.B * each, number, workers);
    const auto offset = [&](int64_t i) { return s.qkv_offset(i / each, heads.begin + i % each); };
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const int64_t next = i + 1 < mine.end ? offset(i + 1) - offset(i) : 0;
      f(i / each, heads.begin + i % each, next, w);
    }
  });
}

template <class E>
void forward_all(Context& ctx, const Sizes& s, const Tensor& qkv, const Tensor& out, const Tensor& lse) {
  const Pin<E> pqkv(qkv), pout(out);
  const Pin<float> plse(lse);
  for_heads(ctx, s, [&](int64_t b, int64_t h, int64_t next, const parallel::Worker& w) {
    kernels::attention_forward(s.head(pqkv.get(), b, h, next), pout + s.out_offset(b, h), plse + (b * s.H + h) * s.T,
                               ctx.scratch(w, kernels::attention_scratch_bytes(s.T, s.D)));
  });
}

template <class E>
void backward_all(Context& ctx, const Sizes& s, const Tensor& qkv, const Tensor& out, const Tensor& lse,
                  const Tensor& dout, const Tensor& dqkv) {
  const Pin<E> pqkv(qkv), pout(out), pdout(dout), pdqkv(dqkv);
  const Pin<float> plse(lse);
  for_heads(ctx, s, [&](int64_t b, int64_t h, int64_t next, const parallel::Worker& w) {
    const int64_t o = s.out_offset(b, h);
    E* dq = pdqkv + s.qkv_offset(b, h);
    kernels::attention_backward(s.head(pqkv.get(), b, h, next), pout + o, pdout + o, plse + (b * s.H + h) * s.T, dq,
                                dq + s.H * s.D, dq + 2 * s.H * s.D,
                                ctx.scratch(w, kernels::attention_scratch_bytes(s.T, s.D)));
  });
}

}  // namespace

void attention_forward(Context& ctx, const Tensor& qkv, int64_t num_heads, const Tensor& out, const Tensor& lse) {
  const Sizes s("attention_forward", qkv, num_heads, out, lse);
  const auto forward = qkv.dtype() == DType::kBF16 ? forward_all<BFloat16> : forward_all<float>;
  forward(ctx, s, qkv, out, lse);
}

void attention_backward(Context& ctx, const Tensor& qkv, int64_t num_heads, const Tensor& out, const Tensor& lse,
                        const Tensor& dout, const Tensor& dqkv) {
  const Sizes s("attention_backward", qkv, num_heads, out, lse);
  expect_shape("attention_backward", "dout", dout, out.shape());
  expect_shape("attention_backward", "dqkv", dqkv, qkv.shape());
  const auto backward = qkv.dtype() == DType::kBF16 ? backward_all<BFloat16> : backward_all<float>;
  backward(ctx, s, qkv, out, lse, dout, dqkv);
}

}  // namespace ditrain::ops
