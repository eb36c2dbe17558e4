// Attention alone, attention with its two linear layers, and softmax, which the framework has only inside attention.
#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/ops/attention.hpp"
#include "ditrain/ops/linear.hpp"
#include "kinds.hpp"

namespace ditrain::verify {

namespace {

constexpr int64_t kLargest = 8192;  // of any dimension

struct Attention {
  Attention(ops::Context& ctx, const Tensor& qkv, int64_t num_heads)
      : qkv(qkv), H(num_heads), out({qkv.dim(0), qkv.dim(1), qkv.dim(2) / 3}), lse({qkv.dim(0), H, qkv.dim(1)}) {
    ops::attention_forward(ctx, qkv, H, out, lse);
  }
  Tensor backward(ops::Context& ctx, const Tensor& dout) const {
    const Tensor dqkv(qkv.shape());
    ops::attention_backward(ctx, qkv, H, out, lse, dout, dqkv);
    return dqkv;
  }
  Tensor qkv;
  int64_t H;
  Tensor out, lse;
};

/// Copies between [B, H, N, D] and part `part` of `parts` parts of [B, N, parts, H, D].
template <bool kToTokens>
void exchange(const Shape& heads_shape, std::vector<float>& heads, std::vector<float>& tokens, int64_t part,
              int64_t parts) {
  const int64_t B = heads_shape[0], H = heads_shape[1], N = heads_shape[2], D = heads_shape[3];
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t t = 0; t < N; ++t) {
        float* head = &heads[size_t(((b * H + h) * N + t) * D)];
        float* token = &tokens[size_t((((b * N + t) * parts + part) * H + h) * D)];
        std::copy_n(kToTokens ? head : token, D, kToTokens ? token : head);
      }
}

Tensor by_token(const Shape& shape, std::vector<std::vector<float>> parts) {
  const int64_t width = int64_t(parts.size()) * shape[1] * shape[3];
  std::vector<float> tokens(size_t(shape[0] * shape[2] * width));
  for (size_t i = 0; i < parts.size(); ++i) exchange<true>(shape, parts[i], tokens, int64_t(i), int64_t(parts.size()));
  return from_values({shape[0], shape[2], width}, tokens);
}

Tensor by_head(const Shape& shape, const Tensor& tokens, int64_t part, int64_t parts) {
  std::vector<float> heads(size_t(num_elements(shape))), values = to_vector(tokens);
  exchange<false>(shape, heads, values, part, parts);
  return from_values(shape, heads);
}

/// Tolerances of y, dq, dk, dv or of y, dx, dwqkv, dbqkv, dwproj, dbproj.
struct CoreTolerances {
  double y, dq, dk, dv;
};
struct ModuleTolerances {
  double y, dx, dwqkv, dbqkv, dwproj, dbproj;
};
constexpr CoreTolerances kCore{2e-6, 2e-6, 3e-6, 2e-6}, kCoreOdd{3e-6, 2e-6, 2e-6, 3e-6};
constexpr ModuleTolerances kModule{4e-6, 4e-6, 4e-6, 4e-6, 3e-6, 2e-6}, kModuleOdd{5e-6, 5e-6, 5e-6, 3e-6, 3e-6, 2e-6};

void verify_core(Verification& v, const std::string& op, const CoreTolerances& tolerance) {
  const Shape shape = v.shape(op + ".q", 4, kLargest);
  const Tensor qkv = by_token(shape, {v.f32(op + ".q", shape), v.f32(op + ".k", shape), v.f32(op + ".v", shape)});
  const Attention attention(v.ctx(), qkv, shape[1]);
  const Tensor dqkv = attention.backward(v.ctx(), by_token(shape, {v.f32(op + ".dy", shape)}));
  v.check_both(op + ".y", by_head(shape, attention.out, 0, 1), tolerance.y);
  v.check_both(op + ".dq", by_head(shape, dqkv, 0, 3), tolerance.dq);
  v.check_both(op + ".dk", by_head(shape, dqkv, 1, 3), tolerance.dk);
  v.check_both(op + ".dv", by_head(shape, dqkv, 2, 3), tolerance.dv);
}

/// The gradient of the key biases (middle third of dbqkv) is 0 in exact arithmetic and noise in float32. The tolerance
/// is relative to the largest entry of the whole tensor, which covers the noise of both sides.
void verify_module(Verification& v, const std::string& op, int64_t num_heads, const ModuleTolerances& tolerance) {
  const Shape shape = v.shape(op + ".x", 3, kLargest);
  const int64_t C = shape[2];
  if (C % num_heads != 0)
    throw InputError({.where = op, .what = "width is no multiple of the heads", .got = to_string(shape)});
  const Tensor x = v.tensor(op + ".x", shape), dy = v.tensor(op + ".dy", shape);
  const Tensor wqkv = v.tensor(op + ".wqkv", {3 * C, C}), bqkv = v.tensor(op + ".bqkv", {3 * C});
  const Tensor wproj = v.tensor(op + ".wproj", {C, C}), bproj = v.tensor(op + ".bproj", {C});
  const Tensor qkv({shape[0], shape[1], 3 * C}), y(shape), dattention(shape), dx(shape);
  const Tensor dwqkv(wqkv.shape()), dbqkv(bqkv.shape()), dwproj(wproj.shape()), dbproj(bproj.shape());
  ops::linear_forward(v.ctx(), x, wqkv, bqkv, qkv);
  const Attention attention(v.ctx(), qkv, num_heads);
  ops::linear_forward(v.ctx(), attention.out, wproj, bproj, y);
  ops::linear_backward_data(v.ctx(), dy, wproj, dattention);
  ops::linear_backward_weight(v.ctx(), attention.out, dy, dwproj, dbproj);
  const Tensor dqkv = attention.backward(v.ctx(), dattention);
  ops::linear_backward_data(v.ctx(), dqkv, wqkv, dx);
  ops::linear_backward_weight(v.ctx(), x, dqkv, dwqkv, dbqkv);
  v.check_both(op + ".y", y, tolerance.y);
  v.check_both(op + ".dx", dx, tolerance.dx);
  v.check_both(op + ".dwqkv", dwqkv, tolerance.dwqkv);
  v.check_both(op + ".dbqkv", dbqkv, tolerance.dbqkv);
  v.check_both(op + ".dwproj", dwproj, tolerance.dwproj);
  v.check_both(op + ".dbproj", dbproj, tolerance.dbproj);
}

/// softmax(x) of rows of n values: row r is query 0 of sample r, token s has key sqrt(D) e_s and value e_s, so that its
/// score is x[s] and its output p[s]; and the gradient by the query is that by x. D is a power of 4, for an exact root.
void verify_softmax(Verification& v) {
  const Shape shape = v.shape("softmax.x", 2, 128);
  const int64_t rows = shape[0], n = shape[1];
  int64_t D = 4, root = 2;
  while (D < n) D *= 4, root *= 2;
  const std::vector<float> x = v.f32("softmax.x", shape), dy = v.f32("softmax.dy", shape);
  const Shape heads{rows, 1, n, D};
  std::vector<float> q(size_t(rows * n * D)), k(q.size()), value(q.size()), dout(q.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t s = 0; s < n; ++s) {
      const size_t first = size_t(r * n * D + s), diagonal = size_t((r * n + s) * D + s);
      q[first] = x[size_t(r * n + s)], dout[first] = dy[size_t(r * n + s)];
      k[diagonal] = float(root), value[diagonal] = 1;
    }
  const Attention attention(v.ctx(), by_token(heads, {q, k, value}), 1);
  const Tensor dqkv = attention.backward(v.ctx(), by_token(heads, {dout}));
  const auto query0 = [&](const std::vector<float>& all) {
    std::vector<double> values;
    for (int64_t i = 0; i < rows * n; ++i) values.push_back(all[size_t(i / n * n * D + i % n)]);
    return values;
  };
  v.check_both("softmax.y", shape, query0(to_vector(by_head(heads, attention.out, 0, 1))), 2e-6);
  v.check_both("softmax.dx", shape, query0(to_vector(by_head(heads, dqkv, 0, 3))), 2e-6);
}

}  // namespace

void verify_attention_ops(Verification& v) {
  verify_softmax(v);
  verify_core(v, "attn_core", kCore);
  verify_core(v, "attn_core_odd", kCoreOdd);
  // The modules' tensors do not tell their heads; they are those of the attention of the same name.
  verify_module(v, "attn", v.shape("attn_core.q", 4, kLargest)[1], kModule);
  verify_module(v, "attn_odd", v.shape("attn_core_odd.q", 4, kLargest)[1], kModuleOdd);
}

}  // namespace ditrain::verify
