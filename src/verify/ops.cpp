// Operators, forward and backward: a table with one row per operator, its function and its tolerances.
// Tolerances are relative to the largest value of a tensor unless said otherwise. Their source is the fixtures'
// description: about ten times the difference between float32 and float64 runs of the reference, at least 2e-6; there
// they serve for the float32 and for the float64 results alike.
#include "ditrain/ops/elementwise.hpp"
#include "ditrain/ops/embedding.hpp"
#include "ditrain/ops/linear.hpp"
#include "ditrain/optim/optimizer.hpp"
#include "operator.hpp"

namespace ditrain::verify {

namespace {

constexpr double kTight = 2e-6;

using Activation = void (*)(ops::Context&, const Tensor& x, const Tensor& y);
using ActivationGradient = void (*)(ops::Context&, const Tensor& x, const Tensor& dy, const Tensor& dx);

template <Activation forward, ActivationGradient backward>
void activation(Operator& o) {
  const Tensor x = o.any("x", 1), dy = o.in("dy", x.shape());
  forward(o.ctx, x, o.out("y", x.shape()));
  backward(o.ctx, x, dy, o.out("dx", x.shape()));
}

/// LayerNorm without scale and shift: a modulation with zeros, all rows as tokens of one sample.
void layer_norm(Operator& o) {
  const Tensor in = o.any("x", 2), dy = o.in("dy", in.shape());
  const Shape tokens{1, in.dim(0), in.dim(1)}, one{1, in.dim(1)};
  const Tensor x = in.reshaped(tokens), mean({1, in.dim(0)}), rstd({1, in.dim(0)});
  const ops::Chunk zeros{Tensor(one)}, dshift{Tensor(one)}, dscale{Tensor(one)};
  ops::layer_norm_modulate_forward(o.ctx, x, zeros, zeros, o.out("y", in.shape()).reshaped(tokens), mean, rstd);
  ops::layer_norm_modulate_backward(o.ctx, x, mean, rstd, zeros, dy.reshaped(tokens),
                                    o.out("dx", in.shape()).reshaped(tokens), dshift, dscale);
}

void gated(Operator& o) {
  const Tensor x = o.any("x", 3), h = o.in("h", x.shape()), dy = o.in("dy", x.shape());
  const Shape per_sample{x.dim(0), x.dim(2)};
  const ops::Chunk gate{o.in("gate", per_sample)};
  ops::gate_residual_forward(o.ctx, x, gate, h, o.out("y", x.shape()));
  copy(dy, o.out("dx", x.shape()));  // the gradient passes through unchanged
  ops::gate_residual_backward(o.ctx, dy, gate, h, o.out("dh", x.shape()), {o.out("dgate", per_sample)});
}

void linear(Operator& o) {
  const Tensor x = o.any("x", 3), w = o.any("w", 2), b = o.in("b", {w.dim(0)});
  const Tensor dy = o.in("dy", {x.dim(0), x.dim(1), w.dim(0)});
  ops::linear_forward(o.ctx, x, w, b, o.out("y", dy.shape()));
  ops::linear_backward_data(o.ctx, dy, w, o.out("dx", x.shape()));
  ops::linear_backward_weight(o.ctx, x, dy, o.out("dw", w.shape()), o.out("db", b.shape()));
}

void embedding(Operator& o) {
  const Tensor table = o.any("table", 2);
  const std::vector<int64_t> idx = o.indices("idx", table.dim(0));
  const Tensor dy = o.in("dy", {int64_t(idx.size()), table.dim(1)});
  ops::embedding_forward(o.ctx, table, idx, o.out("y", dy.shape()));
  ops::embedding_backward(o.ctx, idx, dy, o.out("dtable", table.shape()));
}

void patch_embed(Operator& o) {
  const Tensor x = o.any("x", 4), w = o.any("w", 4), b = o.in("b", {w.dim(0)});
  const int64_t P = w.dim(2);
  if (w.dim(1) != x.dim(1) || w.dim(3) != P || x.dim(2) % P != 0 || x.dim(3) % P != 0)
    o.v.refuse("patch_embed: image and weight do not fit", to_string(w.shape()));
  const int64_t tokens = (x.dim(2) / P) * (x.dim(3) / P);
  const Tensor dy = o.in("dy", {x.dim(0), tokens, w.dim(0)}), drows({x.dim(0), tokens, x.dim(1) * P * P});
  const ops::LinearInput patches = ops::LinearInput::patches(x, P);
  ops::linear_forward(o.ctx, patches, w, b, o.out("y", dy.shape()));
  ops::linear_backward_data(o.ctx, dy, w, drows);
  ops::linear_backward_weight(o.ctx, patches, dy, o.out("dw", w.shape()), o.out("db", b.shape()));
  ops::patchify_backward(o.ctx, drows, P, o.out("dx", x.shape()));
}

void unpatchify(Operator& o) {
  const Shape tokens = o.v.shape("unpatchify.x", 3), image = o.v.shape("unpatchify.y", 4);
  int64_t P = 1;
  while (P <= image[2] && (image[2] % P != 0 || image[3] % P != 0 || image[2] / P * (image[3] / P) != tokens[1])) ++P;
  if (P > image[2]) o.v.refuse("unpatchify: image and tokens do not fit together", to_string(image));
  const Tensor y(image);
  ops::unpatchify(o.ctx, o.in("x", {image[0], tokens[1], P * P * image[1]}), P, y);
  o.v.check("unpatchify.y", image, to_f64(y), 0);
}

void timestep_embedding(Operator& o) {
  const Shape count = o.v.shape(o.name + ".t", 1), shape = o.v.shape(o.name + ".y", 2);
  if (shape[0] != count[0]) o.v.refuse(o.name + ": one row for each timestep", to_string(shape));
  ops::timestep_embedding(o.ctx, o.v.f64(o.name + ".t", count), o.out("y", shape));
}

/// A store with a single parameter of n values, and what becomes of it in steps of the optimiser's one fused pass.
struct OneParameter {
  explicit OneParameter(int64_t n) {
    store.add("p", {n});
    store.allocate(autograd::ParameterStore::For::kTraining, DType::kF32, {.states = optim::state_arrays()});
  }
  static void set(const Tensor& arena, const Tensor& values) {
    std::copy_n(Pin<float>(values).get(), values.size(), Pin<float>(arena).get());
  }
  void append(const Tensor& arena, const Tensor& all, int64_t step) {
    copy(store.view(arena, store.find("p")), all.rows(step, step + 1));
  }
  autograd::ParameterStore store;
};

void adamw(Operator& o) {
  const Tensor g = o.any("g", 2);
  const std::vector<double> hyper = o.v.f64(o.name + ".hyper", {5});
  const optim::Config config{
      .lr = hyper[0], .beta1 = hyper[1], .beta2 = hyper[2], .eps = hyper[3], .weight_decay = hyper[4]};
  OneParameter one(g.dim(1));
  one.set(one.store.values, o.in("p0", {g.dim(1)}));
  const Tensor p = o.out("p", g.shape()), m = o.out("m", g.shape()), v = o.out("v", g.shape());
  for (int64_t k = 0; k < g.dim(0); ++k) {
    one.set(one.store.grads, g.rows(k, k + 1));
    optim::adamw_ema_step(o.ctx, config, {.step = k, .lr = config.lr}, one.store);
    one.append(one.store.values, p, k), one.append(one.store.state("exp_avg").data, m, k);
    one.append(one.store.state("exp_avg_sq").data, v, k);
  }
}

/// ema.d<digits>: the decay is 0.<digits>. With gradient, learning rate and weight decay 0 the pass leaves the
/// parameters as they were put there and only averages them.
void ema(Operator& o) {
  const Tensor p = o.any("p", 2), e0 = o.in("e0", {p.dim(1)});
  const auto decays = o.v.matches("ema.d#");
  if (decays.empty()) o.v.refuse("no tensor of averages", "", "ema.d<digits of the decay>");
  for (const Match& match : decays) {
    OneParameter one(p.dim(1));
    one.set(one.store.ema, e0);
    const Tensor ema = o.out("d" + match.words[0], p.shape());
    for (int64_t k = 0; k < p.dim(0); ++k) {
      one.set(one.store.values, p.rows(k, k + 1));
      optim::adamw_ema_step(o.ctx, {}, {.step = k, .lr = 0, .ema_decay = std::stod("0." + match.words[0])}, one.store);
      one.append(one.store.ema, ema, k);
    }
  }
}

const OperatorRow kOperators[] = {
    {"gelu_tanh", activation<ops::gelu_forward, ops::gelu_backward>, {}},
    {"silu", activation<ops::silu_forward, ops::silu_backward>, {}},
    {"layernorm", layer_norm, {}},
    // Rows of very different size: constant (only eps is left), mean 100, deviation 1e-4, deviation 1e3.
    {"layernorm_edge", layer_norm, {{"y", 4e-5}, {"dx", 2e-5}}, /*by_row=*/true},
    {"gated", gated, {}},
    {"linear", linear, {}},
    {"embedding", embedding, {}},
    {"patch_embed", patch_embed, {}},
    {"unpatchify", unpatchify, {}},
    {"modulate", modulate, {}},
    {"softmax", softmax, {}},
    {"attn_core", attention_core, {{"dk", 3e-6}}},
    {"attn_core_odd", attention_core, {{"y", 3e-6}, {"dv", 3e-6}}},
    {"attn",
     attention_module,
     {{"y", 4e-6}, {"dx", 4e-6}, {"dwqkv", 4e-6}, {"dbqkv", 4e-6}, {"dwproj", 3e-6}, {"dbproj", 2e-6}}},
    {"attn_odd",
     attention_module,
     {{"y", 5e-6}, {"dx", 5e-6}, {"dwqkv", 5e-6}, {"dbqkv", 3e-6}, {"dwproj", 3e-6}, {"dbproj", 2e-6}}},
    {"adamw_plain", adamw, {}},
    {"adamw_decay", adamw, {}},
    {"ema", ema, {}}};

}  // namespace

void Operator::check_results(const OperatorRow& row) {
  for (const auto& [result, got] : results_) {
    const auto other = row.tolerances.find(result);
    v.check_both(name + "." + result, got, other == row.tolerances.end() ? kTight : other->second,
                 row.by_row ? Per::row(got.dim(0)) : Per::tensor());
  }
}

void verify_ops(Verification& v) {
  const auto run = [&](const std::string& name, const OperatorRow& row) {
    Operator o(v, name);
    row.run(o);
    o.check_results(row);
  };
  for (const OperatorRow& row : kOperators) run(row.name, row);
  const auto widths = v.matches("timestep_embedding.#.t");
  if (widths.empty()) v.refuse("no tensor of timesteps", "", "timestep_embedding.<width>.t");
  // The reference computes in float32, where arguments t w_k of narrow embeddings are rounded less.
  for (const Match& m : widths)
    run("timestep_embedding." + m.words[0], {"", timestep_embedding, {{"y", m.number(0) <= 9 ? 1e-5 : 7e-5}}});
}

}  // namespace ditrain::verify
