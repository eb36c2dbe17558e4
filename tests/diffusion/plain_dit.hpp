// A Diffusion Transformer in plain f64 loops, forward only, from the weights of a golden file: the model around which
// the sampling loop is tested, so that this module's tests need no other module.
#pragma once
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/fixture.hpp"

namespace ditrain::test {

/// Legend: T tokens, D width, C channels, S image side, P patch side, G = S / P.
class PlainDit {
 public:
  explicit PlainDit(const Fixture& file)
      : S(file.setting("cfg.input_size")),
        P(file.setting("cfg.patch_size")),
        C(file.setting("cfg.in_channels")),
        D(file.setting("cfg.hidden_size")),
        depth_(file.setting("cfg.depth")),
        heads_(file.setting("cfg.num_heads")),
        out_channels_(file.setting("cfg.learn_sigma") != 0 ? 2 * C : C),
        G(S / P),
        T(G * G) {
    for (const std::string& name : file.names()) {
      if (file.shape(name).size() > 1 || name.ends_with(".bias")) weights_[name] = file.f64(name);
    }
  }

  /// x [n, C, S, S], t [n], y [n] -> out [n, out channels, S, S]
  void operator()(const float* x, const double* t, const int64_t* y, int64_t n, float* out) const {
    for (int64_t i = 0; i < n; ++i) sample(x + i * C * S * S, t[i], y[i], out + i * out_channels_ * S * S);
  }

 private:
  using Vec = std::vector<double>;

  const Vec& weight(const std::string& name) const { return weights_.at(name); }

  static double silu(double v) { return v / (1 + std::exp(-v)); }
  static double gelu(double v) {
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
  }
  static Vec apply(Vec v, double (*f)(double)) {
    for (double& e : v) e = f(e);
    return v;
  }

  /// Every row of x times weight^T plus bias.
  Vec linear(const std::string& name, const Vec& x) const {
    const Vec &w = weight(name + ".weight"), &b = weight(name + ".bias");
    const size_t out = b.size(), in = w.size() / out;
    Vec y(x.size() / in * out);
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] = b[i % out];
      for (size_t k = 0; k < in; ++k) y[i] += x[i / out * in + k] * w[i % out * in + k];
    }
    return y;
  }

  Vec condition(double t, int64_t y) const {
    const size_t half = weight("t_embedder.mlp.0.weight").size() / D / 2;
    Vec wave(2 * half);
    for (size_t k = 0; k < half; ++k) {
      const double angle = t * std::exp(-std::log(10000.0) * static_cast<double>(k) / half);
      wave[k] = std::cos(angle), wave[half + k] = std::sin(angle);
    }
    Vec c = linear("t_embedder.mlp.2", apply(linear("t_embedder.mlp.0", wave), silu));
    for (int64_t k = 0; k < D; ++k) c[k] += weight("y_embedder.embedding_table.weight")[y * D + k];
    return apply(c, silu);
  }

  Vec patches(const float* x) const {
    Vec rows(T * C * P * P);
    for (int64_t token = 0, at = 0; token < T; ++token) {
      for (int64_t c = 0; c < C; ++c) {
        for (int64_t i = 0; i < P; ++i) {
          for (int64_t j = 0; j < P; ++j) rows[at++] = x[(c * S + token / G * P + i) * S + token % G * P + j];
        }
      }
    }
    return rows;
  }

  /// LayerNorm without weights, then (1 + scale) x + shift; both are pieces of one modulation vector.
  Vec modulated(const Vec& x, const double* shift, const double* scale) const {
    Vec y(x.size());
    for (int64_t token = 0; token < T; ++token) {
      const double* row = x.data() + token * D;
      double mean = 0, square = 0;
      for (int64_t k = 0; k < D; ++k) mean += row[k] / D;
      for (int64_t k = 0; k < D; ++k) square += (row[k] - mean) * (row[k] - mean) / D;
      for (int64_t k = 0; k < D; ++k) {
        y[token * D + k] = (row[k] - mean) / std::sqrt(square + 1e-6) * (1 + scale[k]) + shift[k];
      }
    }
    return y;
  }

  Vec attention(const Vec& qkv) const {
    const int64_t d = D / heads_;
    Vec out(T * D, 0.0);
    for (int64_t row = 0; row < T * heads_; ++row) {
      const int64_t token = row / heads_, head = row % heads_ * d;
      Vec p(T);
      double total = 0;
      for (int64_t other = 0; other < T; ++other) {
        double dot = 0;
        for (int64_t k = 0; k < d; ++k) dot += qkv[token * 3 * D + head + k] * qkv[(other * 3 + 1) * D + head + k];
        total += p[other] = std::exp(dot / std::sqrt(static_cast<double>(d)));
      }
      for (int64_t other = 0; other < T; ++other) {
        for (int64_t k = 0; k < d; ++k) {
          out[token * D + head + k] += p[other] / total * qkv[(other * 3 + 2) * D + head + k];
        }
      }
    }
    return out;
  }

  void add_gated(Vec& x, const double* gate, const Vec& h) const {
    for (size_t i = 0; i < x.size(); ++i) x[i] += gate[i % D] * h[i];
  }

  void block(const std::string& name, const Vec& c, Vec& x) const {
    const Vec mod = linear(name + ".adaLN_modulation.1", c);
    const auto part = [&](int64_t i) { return mod.data() + i * D; };
    const Vec qkv = linear(name + ".attn.qkv", modulated(x, part(0), part(1)));
    add_gated(x, part(2), linear(name + ".attn.proj", attention(qkv)));
    const Vec hidden = apply(linear(name + ".mlp.fc1", modulated(x, part(3), part(4))), gelu);
    add_gated(x, part(5), linear(name + ".mlp.fc2", hidden));
  }

  void sample(const float* image, double t, int64_t y, float* out) const {
    const Vec c = condition(t, y);
    Vec x = linear("x_embedder.proj", patches(image));
    for (size_t i = 0; i < x.size(); ++i) x[i] += weight("pos_embed")[i];
    for (int64_t i = 0; i < depth_; ++i) block("blocks." + std::to_string(i), c, x);
    const Vec mod = linear("final_layer.adaLN_modulation.1", c);
    const Vec rows = linear("final_layer.linear", modulated(x, mod.data(), mod.data() + D));
    for (int64_t at = 0; at < T * P * P * out_channels_; ++at) {
      const int64_t channel = at % out_channels_, j = at / out_channels_ % P, i = at / out_channels_ / P % P;
      const int64_t token = at / out_channels_ / P / P;
      out[(channel * S + token / G * P + i) * S + token % G * P + j] = static_cast<float>(rows[at]);
    }
  }

  int64_t S, P, C, D, depth_, heads_, out_channels_, G, T;
  std::map<std::string, Vec> weights_;
};

}  // namespace ditrain::test
