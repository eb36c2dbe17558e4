#include "ditrain/ops/attention.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>

#include "ditrain/base/error.hpp"
#include "ditrain/kernels/attention.hpp"
#include "ditrain/kernels/elementwise.hpp"
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
    if (T < 1)
      throw ShapeError({.where = op, .what = "tokens per sample", .got = std::to_string(T), .expected = "at least 1"});
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

// With fewer heads than clusters (an autoencoder's) some would have none.
bool heads_go_to_clusters(const Context& ctx, const Sizes& s) {
  return ctx.cuts_columns() && s.H >= ctx.team().num_clusters();
}

// f(b, h, next, worker) for all heads of all samples, which workers share out while they work: in runs of samples, or
// of heads where those go to clusters. next: elements of qkv from this head to the worker's next one, 0 if unknown.
template <class F>
void for_heads(Context& ctx, const Sizes& s, const F& f) {
  const bool by_cluster = heads_go_to_clusters(ctx, s);
  ctx.run(WorkKind::kAttention, [&](const parallel::Worker& w) {
    parallel::Range heads{0, s.H};
    if (by_cluster) heads = parallel::partition(s.H, w.cluster, w.num_clusters);
    const int number = by_cluster ? w.worker_in_cluster : w.worker;
    const int workers = by_cluster ? w.workers_in_cluster : w.num_workers, each = heads.size();
    const auto part = [&](int owner) { return parallel::partition(s.B * each, owner, workers); };
    const auto offset = [&](int64_t i) { return s.qkv_offset(i / each, heads.begin + i % each); };
    parallel::Shares& shares = by_cluster ? ctx.shares_of_cluster(w) : ctx.shares_of_job(w);
    shares.take(number, part(number).size(), 1, [&](int owner, const parallel::Range& taken) {
      const int64_t first = part(owner).begin, end = first + taken.end;
      for (int64_t i = first + taken.begin; i < end; ++i) {
        const int64_t next = i + 1 < end ? offset(i + 1) - offset(i) : 0;
        f(i / each, heads.begin + i % each, next, w);
      }
    });
  });
}

constexpr float kLayerEps = 1e-5f, kRmsEps = 1e-6f;  // torch's default for LayerNorm; timm's and LightningDiT's RMSNorm

// The terms of a norm, held in place.
struct PinnedNorm {
  PinnedNorm(const char* op, const HeadNorm& norm, int64_t D) : layer(norm.q_bias.defined()) {
    const std::vector<Tensor> terms = norm.terms();
    DITRAIN_CHECK(norm.k_weight.defined() == norm.exists() && norm.k_bias.defined() == layer, "half a norm");
    for (const Tensor& t : terms) expect_shape(op, "a scale or shift of queries or keys", t, {D}), pins.emplace_back(t);
    if (terms.empty()) return;
    const size_t k = layer ? 2 : 1;
    q = {pins[0], layer ? pins[1].get() : nullptr}, key = {pins[k], layer ? pins[k + 1].get() : nullptr};
  }
  struct Terms {
    const float *weight = nullptr, *bias = nullptr;
  };
  bool layer;
  std::deque<Pin<float>> pins;
  Terms q, key;
  int64_t number() const { return int64_t(pins.size()); }

  template <class E>
  void forward(const E* x, int64_t stride, const Terms& terms, E* y, int64_t rows, int64_t D) const {
    if (layer)
      kernels::layer_norm_forward(x, stride, terms.weight, terms.bias, y, rows, D, kLayerEps);
    else
      kernels::rms_norm_forward(x, stride, terms.weight, y, rows, D, kRmsEps);
  }
  // dterms: the weight's D gradients, then the bias's.
  template <class E>
  void backward(const E* x, int64_t stride, const Terms& terms, const E* dy, E* dx, float* dterms, int64_t rows,
                int64_t D) const {
    if (layer)
      kernels::layer_norm_backward(x, stride, terms.weight, dy, dx, dterms, dterms + D, rows, D, kLayerEps);
    else
      kernels::rms_norm_backward(x, stride, terms.weight, dy, dx, dterms, rows, D, kRmsEps);
  }
};

// The rotation of heads of width D: factors of rotate_pairs for every row and column of the grid.
class Angles {
 public:
  Angles(const char* op, const Rotation& rotation, const Sizes& s)
      : height_(rotation.grid_height),
        width_(rotation.grid_width),
        half_(s.D / 2),
        tokens_(s.T),
        places_(rotation.places) {
    if (!rotation.exists()) return;
    const bool fits = places_ == nullptr ? height_ * width_ == tokens_ : height_ * width_ >= tokens_;
    if (s.D % 4 != 0 || !fits)
      throw ShapeError(
          {.where = op,
           .what = "rotation of heads of width " + std::to_string(s.D) + " and " + std::to_string(s.T) + " tokens",
           .got = std::to_string(height_) + " x " + std::to_string(width_),
           .expected = "a width that 4 divides, and as many tokens as the grid has"});
    for (int64_t position = 0; position < std::max(height_, width_); ++position)
      for (int64_t j = 0; j < half_; ++j) {
        const double angle = double(position) * std::pow(10000.0, -double(j / 2 * 2) / double(half_));
        cosines_.push_back(float(std::cos(angle)));
        sines_.push_back(float(j % 2 == 0 ? -std::sin(angle) : std::sin(angle)));
        back_.push_back(-sines_.back());
      }
  }
  bool exist() const { return height_ > 0; }

  // Turns rows x [T, D] of sample b in place, or back.
  template <class E>
  void turn(E* x, int64_t b, bool back) const {
    const int64_t D = 2 * half_;
    if (places_ != nullptr) return turn_some(x, places_ + b * tokens_, back);
    for (int64_t row = 0; row < height_; ++row) turn(x + row * width_ * D, D, row, width_, back);
    for (int64_t column = 0; column < width_; ++column) turn(x + column * D + half_, width_ * D, column, height_, back);
  }

 private:
  template <class E>
  void turn_some(E* x, const int64_t* places, bool back) const {
    const int64_t D = 2 * half_;
    for (int64_t t = 0; t < tokens_; ++t) turn(x + t * D + half_, D, places[t] % width_, 1, back);
    for (int64_t t = 0, end = 0; t < tokens_; t = end) {  // neighbours of one row together
      const int64_t row = places[t] / width_;
      while (end < tokens_ && places[end] / width_ == row) ++end;
      turn(x + t * D, D, row, end - t, back);
    }
  }
  template <class E>
  void turn(E* x, int64_t stride, int64_t position, int64_t rows, bool back) const {
    const int64_t at = position * half_;
    kernels::rotate_pairs(x, stride, cosines_.data() + at, (back ? back_ : sines_).data() + at, x, rows, half_);
  }
  int64_t height_, width_, half_, tokens_;
  const int64_t* places_;
  std::vector<float> cosines_, sines_, back_;  // [positions, D / 2]; sines with the signs of their places, and negated
};

// Copies rows of D elements; other heads lie between them in one of the two, where no hardware fetches ahead.
template <class E>
void copy_rows(const E* from, int64_t from_stride, E* to, int64_t to_stride, int64_t rows, int64_t D) {
  constexpr int64_t kRowsAhead = 16, kLine = 64 / int64_t{sizeof(E)};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; r + kRowsAhead < rows && j < D; j += kLine) {
      __builtin_prefetch(from + (r + kRowsAhead) * from_stride + j, 0, 2);
      __builtin_prefetch(to + (r + kRowsAhead) * to_stride + j, 1, 2);
    }
    std::copy_n(from + r * from_stride, D, to + r * to_stride);
  }
}

// A worker's scratch for one head: that of the attention, and, if q and k are prepared, room for q, k and v and for
// their gradients.
template <class E>
struct Scratch {
  Scratch(Context& ctx, const parallel::Worker& w, const Sizes& s, bool forward, int64_t copies) {
    const auto bytes = forward ? kernels::attention_forward_scratch_bytes : kernels::attention_scratch_bytes;
    const size_t attention_bytes = (bytes(s.T, s.D, kDTypeOf<E>) + 63) / 64 * 64;
    const size_t copy_bytes = (size_t(3 * s.T * s.D) * sizeof(E) + 63) / 64 * 64;
    attention = ctx.scratch(w, attention_bytes + size_t(copies) * copy_bytes);
    char* first = static_cast<char*>(attention) + attention_bytes;
    qkv = reinterpret_cast<E*>(first), dqkv = reinterpret_cast<E*>(first + copy_bytes);
  }
  void* attention;
  E *qkv, *dqkv;
};

// What is done with q and k before the attention.
struct Preparation {
  PinnedNorm norm;
  Angles angles;
  bool any() const { return norm.number() > 0 || angles.exist(); }

  template <class E>
  void forward(const E* x, int64_t stride, const PinnedNorm::Terms& terms, E* y, const Sizes& s, int64_t b) const {
    if (norm.number() > 0)
      norm.forward(x, stride, terms, y, s.T, s.D);
    else
      copy_rows(x, stride, y, s.D, s.T, s.D);
    if (angles.exist()) angles.turn(y, b, /*back=*/false);
  }
  // dy, which is changed, to dx, which has the stride of x.
  template <class E>
  void backward(const E* x, int64_t stride, const PinnedNorm::Terms& terms, E* dy, E* dx, float* dterms, const Sizes& s,
                int64_t b) const {
    if (angles.exist()) angles.turn(dy, b, /*back=*/true);
    if (norm.number() > 0)
      norm.backward(x, stride, terms, dy, dx, dterms, s.T, s.D);
    else
      copy_rows(dy, s.D, dx, stride, s.T, s.D);
  }
};

// The head, of sample b, with q and k prepared, one behind the other in `to`.
template <class E>
kernels::AttentionHead prepared(const Sizes& s, const Preparation& prepare, const kernels::AttentionHead& head,
                                int64_t b, E* to) {
  const int64_t each = s.T * s.D, stride = head.qkv_stride;
  prepare.forward(static_cast<const E*>(head.q), stride, prepare.norm.q, to, s, b);
  prepare.forward(static_cast<const E*>(head.k), stride, prepare.norm.key, to + each, s, b);
  copy_rows(static_cast<const E*>(head.v), stride, to + 2 * each, s.D, s.T, s.D);
  kernels::AttentionHead result = head;
  result.q = to, result.k = to + each, result.v = to + 2 * each, result.qkv_stride = s.D, result.next = 0;
  return result;
}

// How many parts the queries of a head are cut into, so that few heads keep all workers busy. Each part packs the keys
// and values of the head again, which takes the time of some 9 queries.
constexpr int64_t kQueryGrain = 64;
int64_t parts_of_queries(Context& ctx, const Sizes& s) {
  const int64_t heads = s.B * s.H, workers = ctx.num_workers();
  if (heads_go_to_clusters(ctx, s) || heads == 0 || heads >= workers) return 1;
  return std::min((workers + heads - 1) / heads, (s.T + kQueryGrain - 1) / kQueryGrain);
}

// f(b, h, queries, worker) for each worker's parts of the queries of all heads.
template <class F>
void for_parts_of_heads(Context& ctx, const Sizes& s, int64_t parts, const F& f) {
  ctx.run(WorkKind::kAttention, [&](const parallel::Worker& w) {
    const parallel::Range mine = parallel::partition(s.B * s.H * parts, w.worker, w.num_workers);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const int64_t head = i / parts;
      f(head / s.H, head % s.H, parallel::partition(s.T, int(i % parts), int(parts), kQueryGrain), w);
    }
  });
}

template <class E>
void forward_all(Context& ctx, const Sizes& s, const Tensor& qkv, const Tensor& out, const Tensor& lse,
                 const Preparation& prepare) {
  const Pin<E> pqkv(qkv), pout(out);
  const Pin<float> plse(lse);
  const auto forward = [&](int64_t b, int64_t h, int64_t next, const parallel::Range& queries,
                           const parallel::Worker& w) {
    const Scratch<E> scratch(ctx, w, s, /*forward=*/true, prepare.any() ? 1 : 0);
    kernels::AttentionHead head = s.head(pqkv.get(), b, h, next);
    if (prepare.any()) head = prepared(s, prepare, head, b, scratch.qkv);
    head.first_query = queries.begin, head.end_query = queries.end;
    kernels::attention_forward(head, pout + s.out_offset(b, h), plse + (b * s.H + h) * s.T, scratch.attention);
  };
  const int64_t parts = parts_of_queries(ctx, s);
  if (parts > 1)
    return for_parts_of_heads(ctx, s, parts,
                              [&](int64_t b, int64_t h, const parallel::Range& queries, const parallel::Worker& w) {
                                forward(b, h, 0, queries, w);
                              });
  for_heads(ctx, s, [&](int64_t b, int64_t h, int64_t next, const parallel::Worker& w) {
    forward(b, h, next, {0, s.T}, w);
  });
}

template <class E>
void backward_all(Context& ctx, const Sizes& s, const Tensor& qkv, const Tensor& out, const Tensor& lse,
                  const Tensor& dout, const Tensor& dqkv, const Preparation& prepare, float* dterms) {
  const Pin<E> pqkv(qkv), pout(out), pdout(dout), pdqkv(dqkv);
  const Pin<float> plse(lse);
  for_heads(ctx, s, [&](int64_t b, int64_t h, int64_t next, const parallel::Worker& w) {
    const Scratch<E> scratch(ctx, w, s, /*forward=*/false, prepare.any() ? 2 : 0);
    const int64_t o = s.out_offset(b, h), each = s.T * s.D, width = s.H * s.D;
    const auto attention = [&](const kernels::AttentionHead& head, E* dq, E* dk, E* dv) {
      kernels::attention_backward(head, pout + o, pdout + o, plse + (b * s.H + h) * s.T, dq, dk, dv, scratch.attention);
    };
    const kernels::AttentionHead head = s.head(pqkv.get(), b, h, next);
    E *dq = pdqkv + s.qkv_offset(b, h), *dk = dq + width, *dv = dk + width;
    if (!prepare.any()) return attention(head, dq, dk, dv);
    E* dy = scratch.dqkv;
    attention(prepared(s, prepare, head, b, scratch.qkv), dy, dy + each, dy + 2 * each);
    const PinnedNorm& norm = prepare.norm;
    float* of_head = dterms + (b * s.H + h) * norm.number() * s.D;
    const int64_t stride = head.qkv_stride, half = norm.number() / 2 * s.D;
    prepare.backward(static_cast<const E*>(head.q), stride, norm.q, dy, dq, of_head, s, b);
    prepare.backward(static_cast<const E*>(head.k), stride, norm.key, dy + each, dk, of_head + half, s, b);
    copy_rows(dy + 2 * each, s.D, dv, stride, s.T, s.D);
  });
}

}  // namespace

std::vector<Tensor> HeadNorm::terms() const {
  std::vector<Tensor> all;
  for (const Tensor& t : {q_weight, q_bias, k_weight, k_bias})
    if (t.defined()) all.push_back(t);
  return all;
}

void attention_forward(Context& ctx, const Tensor& qkv, int64_t num_heads, const Tensor& out, const Tensor& lse,
                       const HeadNorm& norm, const Rotation& rotation) {
  constexpr const char* kOp = "attention_forward";
  const Sizes s(kOp, qkv, num_heads, out, lse);
  const Preparation prepare{{kOp, norm, s.D}, {kOp, rotation, s}};
  const auto forward = qkv.dtype() == DType::kBF16 ? forward_all<BFloat16> : forward_all<float>;
  forward(ctx, s, qkv, out, lse, prepare);
}

void attention_backward(Context& ctx, const Tensor& qkv, int64_t num_heads, const Tensor& out, const Tensor& lse,
                        const Tensor& dout, const Tensor& dqkv, const HeadNorm& norm, const Tensor& dterms,
                        const Rotation& rotation) {
  constexpr const char* kOp = "attention_backward";
  const Sizes s(kOp, qkv, num_heads, out, lse);
  expect_shape(kOp, "dout", dout, out.shape());
  expect_shape(kOp, "dqkv", dqkv, qkv.shape());
  const Preparation prepare{{kOp, norm, s.D}, {kOp, rotation, s}};
  std::optional<Pin<float>> gradients;
  if (norm.exists()) {
    expect_shape(kOp, "dterms", dterms, {s.B, s.H, prepare.norm.number(), s.D});
    gradients.emplace(dterms);
  }
  const auto backward = qkv.dtype() == DType::kBF16 ? backward_all<BFloat16> : backward_all<float>;
  backward(ctx, s, qkv, out, lse, dout, dqkv, prepare, gradients ? gradients->get() : nullptr);
}

void sum_over_heads(Context& ctx, const Tensor& dterms, const Tensor& sums) {
  expect_shape("sum_over_heads", "sums", sums, {dterms.dim(2), dterms.dim(3)});
  const int64_t n = sums.size(), heads = dterms.size() / n;
  constexpr int64_t kGrain = 16;  // one cache line
  const Pin<float> from(dterms), to(sums);
  ctx.for_range(n, kGrain, [&](int64_t begin, int64_t end, const parallel::Worker&) {
    std::copy(from + begin, from + end, to + begin);
    for (int64_t i = 1; i < heads; ++i) kernels::add(from + i * n + begin, to + begin, end - begin);
  });
}

void set_gradients(Context& ctx, const Tensor& sums, const HeadNorm& gradients, bool accumulate) {
  const std::vector<Tensor> terms = gradients.terms();
  DITRAIN_CHECK(int64_t(terms.size()) == sums.dim(0), "gradients of another norm");
  ctx.run_alone(WorkKind::kElementwise, [&] {
    for (size_t i = 0; i < terms.size(); ++i) {
      const Tensor row = sums.slice(int64_t(i) * sums.dim(1), terms[i].shape());
      if (!accumulate) copy(row, terms[i]);
      if (accumulate) kernels::add(Pin<float>(row).get(), Pin<float>(terms[i]).get(), row.size());
    }
  });
}

}  // namespace ditrain::ops
