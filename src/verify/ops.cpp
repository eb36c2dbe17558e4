// Single operations: element-wise ones, norms, gates, linear layers, embeddings and patches.
// Tolerances here and in ops_*.cpp are relative to the largest value of a tensor unless said otherwise. Their source is
// the fixtures' description: about ten times the difference between float32 and float64 runs of the reference, at least
// 2e-6; there they serve for the float32 and for the float64 results alike.
#include "ditrain/base/error.hpp"
#include "ditrain/ops/elementwise.hpp"
#include "ditrain/ops/embedding.hpp"
#include "ditrain/ops/linear.hpp"
#include "kinds.hpp"

namespace ditrain::verify {

namespace {

constexpr int64_t kLargest = 65536;  // of any dimension of an operation's tensors
constexpr double kTight = 2e-6;

using Activation = void (*)(ops::Context&, const Tensor& x, const Tensor& y);
using ActivationGradient = void (*)(ops::Context&, const Tensor& x, const Tensor& dy, const Tensor& dx);

void verify_activation(Verification& v, const std::string& op, Activation forward, ActivationGradient backward) {
  const Shape shape = v.shape(op + ".x", 1, kLargest);
  const Tensor x = v.tensor(op + ".x", shape), dy = v.tensor(op + ".dy", shape), y(shape), dx(shape);
  forward(v.ctx(), x, y);
  backward(v.ctx(), x, dy, dx);
  v.check_both(op + ".y", y, kTight);
  v.check_both(op + ".dx", dx, kTight);
}

/// LayerNorm without scale and shift: a modulation with zeros, all rows as tokens of one sample.
void verify_layer_norm(Verification& v, const std::string& op, double y_tolerance, double dx_tolerance, bool by_row) {
  const Shape rows = v.shape(op + ".x", 2, kLargest), tokens{1, rows[0], rows[1]}, one{1, rows[1]};
  const Tensor x = v.tensor(op + ".x", rows).reshaped(tokens), dy = v.tensor(op + ".dy", rows).reshaped(tokens);
  const Tensor y(tokens), dx(tokens), mean({1, rows[0]}), rstd({1, rows[0]});
  const ops::Chunk zeros{Tensor(one)}, dshift{Tensor(one)}, dscale{Tensor(one)};
  ops::layer_norm_modulate_forward(v.ctx(), x, zeros, zeros, y, mean, rstd);
  ops::layer_norm_modulate_backward(v.ctx(), x, mean, rstd, zeros, dy, dx, dshift, dscale);
  const Per per = by_row ? Per::row(rows[0]) : Per::tensor();
  v.check_both(op + ".y", y.reshaped(rows), y_tolerance, per);
  v.check_both(op + ".dx", dx.reshaped(rows), dx_tolerance, per);
}

void verify_gated(Verification& v) {
  const Shape shape = v.shape("gated.x", 3, kLargest), per_sample{shape[0], shape[2]};
  const Tensor x = v.tensor("gated.x", shape), h = v.tensor("gated.h", shape), dy = v.tensor("gated.dy", shape);
  const ops::Chunk gate{v.tensor("gated.gate", per_sample)}, dgate{Tensor(per_sample)};
  const Tensor y(shape), dh(shape);
  ops::gate_residual_forward(v.ctx(), x, gate, h, y);
  ops::gate_residual_backward(v.ctx(), dy, gate, h, dh, dgate);
  v.check_both("gated.y", y, kTight);
  v.check_both("gated.dx", dy, kTight);  // the gradient passes through unchanged
  v.check_both("gated.dh", dh, kTight);
  v.check_both("gated.dgate", dgate.cond, kTight);
}

void verify_linear(Verification& v) {
  const Shape in = v.shape("linear.x", 3, kLargest), weight = v.shape("linear.w", 2, kLargest);
  const Shape out{in[0], in[1], weight[0]}, bias{weight[0]};
  const Tensor x = v.tensor("linear.x", in), w = v.tensor("linear.w", {weight[0], in[2]});
  const Tensor b = v.tensor("linear.b", bias), dy = v.tensor("linear.dy", out);
  const Tensor y(out), dx(in), dw(weight), db(bias);
  ops::linear_forward(v.ctx(), x, w, b, y);
  ops::linear_backward_data(v.ctx(), dy, w, dx);
  ops::linear_backward_weight(v.ctx(), x, dy, dw, db);
  v.check_both("linear.y", y, kTight);
  v.check_both("linear.dx", dx, kTight);
  v.check_both("linear.dw", dw, kTight);
  v.check_both("linear.db", db, kTight);
}

void verify_embedding(Verification& v) {
  const Shape table_shape = v.shape("embedding.table", 2, kLargest), count = v.shape("embedding.idx", 1, kLargest);
  const Shape out{count[0], table_shape[1]};
  const std::vector<int64_t> idx = v.i64("embedding.idx", count, 0, table_shape[0] - 1);
  const Tensor table = v.tensor("embedding.table", table_shape), dy = v.tensor("embedding.dy", out);
  const Tensor y(out), dtable(table_shape);
  ops::embedding_forward(v.ctx(), table, idx, y);
  ops::embedding_backward(v.ctx(), idx, dy, dtable);
  v.check_both("embedding.y", y, kTight);
  v.check_both("embedding.dtable", dtable, kTight);
}

/// Patch size of a map from [B, C, H, W] with `tokens` square patches.
int64_t patch_of(const Shape& image, int64_t tokens, const char* op) {
  for (int64_t p = 1; p <= image[2] && p <= image[3]; ++p)
    if (image[2] % p == 0 && image[3] % p == 0 && (image[2] / p) * (image[3] / p) == tokens) return p;
  throw InputError({.where = op, .what = "image and tokens do not fit together", .got = to_string(image)});
}

void verify_patch_embed(Verification& v) {
  const Shape image = v.shape("patch_embed.x", 4, kLargest), weight = v.shape("patch_embed.w", 4, kLargest);
  const int64_t P = weight[2], patch_values = image[1] * P * P;
  if (weight[1] != image[1] || weight[3] != P || image[2] % P != 0 || image[3] % P != 0)
    throw InputError({.where = "patch_embed", .what = "image and weight do not fit", .got = to_string(weight)});
  const int64_t tokens = (image[2] / P) * (image[3] / P);
  const Shape out{image[0], tokens, weight[0]}, rows_shape{image[0], tokens, patch_values}, bias{weight[0]};
  const Tensor x = v.tensor("patch_embed.x", image), w = v.tensor("patch_embed.w", weight);
  const Tensor b = v.tensor("patch_embed.b", bias), dy = v.tensor("patch_embed.dy", out);
  const Tensor drows(rows_shape), y(out), dx(image), dw(weight), db(bias);
  const ops::LinearInput patches = ops::LinearInput::patches(x, P);
  ops::linear_forward(v.ctx(), patches, w, b, y);
  ops::linear_backward_data(v.ctx(), dy, w, drows);
  ops::linear_backward_weight(v.ctx(), patches, dy, dw, db);
  ops::patchify_inverse(v.ctx(), drows, P, dx);
  v.check_both("patch_embed.y", y, kTight);
  v.check_both("patch_embed.dx", dx, kTight);
  v.check_both("patch_embed.dw", dw, kTight);
  v.check_both("patch_embed.db", db, kTight);
}

void verify_unpatchify(Verification& v) {
  const Shape tokens = v.shape("unpatchify.x", 3, kLargest), image = v.shape("unpatchify.y", 4, kLargest);
  const int64_t P = patch_of(image, tokens[1], "unpatchify");
  const Tensor x = v.tensor("unpatchify.x", {image[0], tokens[1], P * P * image[1]}), y(image);
  ops::unpatchify(v.ctx(), x, P, y);
  v.check("unpatchify.y", image, to_f64(y), 0);
}

/// timestep_embedding.<dim>, for every dim of the file.
void verify_timestep_embeddings(Verification& v) {
  const std::string prefix = "timestep_embedding.";
  int64_t found = 0;
  for (const std::string& name : v.names()) {
    if (!name.starts_with(prefix) || !name.ends_with(".t")) continue;
    const std::string op = name.substr(0, name.size() - 2);
    const Shape count = v.shape(name, 1, kLargest), shape = v.shape(op + ".y", 2, kLargest);
    if (shape[0] != count[0])
      throw InputError({.where = op, .what = "one row for each timestep", .got = to_string(shape)});
    const Tensor y(shape);
    ops::timestep_embedding(v.ctx(), v.f64(name, count), y);
    // The reference computes in float32, where arguments t w_k of narrow embeddings are rounded less.
    v.check_both(op + ".y", y, shape[1] <= 9 ? 1e-5 : 7e-5);
    ++found;
  }
  if (found == 0) throw InputError({.where = "ops", .what = "no tensor timestep_embedding.<dim>.t"});
}

}  // namespace

void verify_elementwise_ops(Verification& v) {
  verify_activation(v, "gelu_tanh", ops::gelu_forward, ops::gelu_backward);
  verify_activation(v, "silu", ops::silu_forward, ops::silu_backward);
  verify_layer_norm(v, "layernorm", kTight, kTight, false);
  // Rows of very different size: constant (only eps is left), mean 100, deviation 1e-4, deviation 1e3.
  verify_layer_norm(v, "layernorm_edge", 4e-5, 2e-5, true);
  verify_gated(v);
  verify_linear(v);
  verify_embedding(v);
  verify_patch_embed(v);
  verify_unpatchify(v);
  verify_timestep_embeddings(v);
}

void verify_ops(Verification& v) {
  verify_elementwise_ops(v);
  verify_modulate(v);
  verify_attention_ops(v);
  verify_optimizer_ops(v);
}

}  // namespace ditrain::verify
