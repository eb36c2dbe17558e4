// Attention alone, attention with its two linear layers, and softmax, which the framework has only inside attention.
#include <algorithm>

#include "ditrain/ops/attention.hpp"
#include "ditrain/ops/linear.hpp"
#include "operator.hpp"

namespace ditrain::verify {

namespace {

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

}  // namespace

void attention_core(Operator& o) {
  const Tensor q = o.any("q", 4);
  const Shape& shape = q.shape();
  const auto values = [&](const char* name) { return to_vector(o.in(name, shape)); };
  const Attention attention(o.ctx, by_token(shape, {to_vector(q), values("k"), values("v")}), shape[1]);
  const Tensor dqkv = attention.backward(o.ctx, by_token(shape, {values("dy")}));
  copy(by_head(shape, attention.out, 0, 1), o.out("y", shape));
  for (const auto& [name, part] : {std::pair{"dq", 0}, std::pair{"dk", 1}, std::pair{"dv", 2}})
    copy(by_head(shape, dqkv, part, 3), o.out(name, shape));
}

/// The modules' tensors do not tell their heads; they are those of attn_core or attn_core_odd.
/// The gradient of the key biases (middle third of dbqkv) is 0 in exact arithmetic and noise in float32. The tolerance
/// is relative to the largest entry of the whole tensor, which covers the noise of both sides.
void attention_module(Operator& o) {
  const Tensor x = o.any("x", 3), dy = o.in("dy", x.shape());
  const int64_t B = x.dim(0), T = x.dim(1), C = x.dim(2);
  const int64_t num_heads = o.v.shape("attn_core" + o.name.substr(4) + ".q", 4)[1];
  if (C % num_heads != 0) o.v.refuse(o.name + ": width is no multiple of the heads", to_string(x.shape()));
  const Tensor wqkv = o.in("wqkv", {3 * C, C}), bqkv = o.in("bqkv", {3 * C});
  const Tensor wproj = o.in("wproj", {C, C}), bproj = o.in("bproj", {C}), qkv({B, T, 3 * C}), dattention(x.shape());
  ops::linear_forward(o.ctx, x, wqkv, bqkv, qkv);
  const Attention attention(o.ctx, qkv, num_heads);
  ops::linear_forward(o.ctx, attention.out, wproj, bproj, o.out("y", x.shape()));
  ops::linear_backward_data(o.ctx, dy, wproj, dattention);
  ops::linear_backward_weight(o.ctx, attention.out, dy, o.out("dwproj", wproj.shape()), o.out("dbproj", {C}));
  const Tensor dqkv = attention.backward(o.ctx, dattention);
  ops::linear_backward_data(o.ctx, dqkv, wqkv, o.out("dx", x.shape()));
  ops::linear_backward_weight(o.ctx, x, dqkv, o.out("dwqkv", wqkv.shape()), o.out("dbqkv", {3 * C}));
}

/// softmax(x) of rows of n values: row r is query 0 of sample r, token s has key sqrt(D) e_s and value e_s, so that its
/// score is x[s] and its output p[s]; and the gradient by the query is that by x. D is a power of 4, for an exact root.
void softmax(Operator& o) {
  const Shape shape = o.v.shape("softmax.x", 2, 128);
  const int64_t rows = shape[0], n = shape[1];
  int64_t D = 4, root = 2;
  while (D < n) D *= 4, root *= 2;
  const std::vector<float> x = to_vector(o.in("x", shape)), dy = to_vector(o.in("dy", shape));
  const Shape heads{rows, 1, n, D};
  std::vector<float> q(size_t(rows * n * D)), k(q.size()), value(q.size()), dout(q.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t s = 0; s < n; ++s) {
      const size_t first = size_t(r * n * D + s), diagonal = size_t((r * n + s) * D + s);
      q[first] = x[size_t(r * n + s)], dout[first] = dy[size_t(r * n + s)];
      k[diagonal] = float(root), value[diagonal] = 1;
    }
  const Attention attention(o.ctx, by_token(heads, {q, k, value}), 1);
  const Tensor dqkv = attention.backward(o.ctx, by_token(heads, {dout}));
  const auto query0 = [&](const char* name, const Tensor& tokens, int64_t parts) {
    const std::vector<float> all = to_vector(by_head(heads, tokens, 0, parts));
    std::vector<float> values;
    for (int64_t i = 0; i < rows * n; ++i) values.push_back(all[size_t(i / n * n * D + i % n)]);
    o.out(name, shape, values);
  };
  query0("y", attention.out, 1);
  query0("dx", dqkv, 3);
}

}  // namespace ditrain::verify
