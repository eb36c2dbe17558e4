// kernels::ref on f32 arrays.
#include "ditrain/kernels/attention.hpp"
#include "ditrain/kernels/gemm.hpp"
#include "ref_bodies.hpp"

namespace ditrain::kernels::ref {

void gemm(const GemmArgs& g) {
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      double sum = g.accumulate ? double(g.c[i * g.ldc + j]) : 0.0;
      for (int64_t p = 0; p < g.k; ++p) {
        const float a = g.trans_a == Trans::kYes ? g.a[p * g.lda + i] : g.a[i * g.lda + p];
        const float b = g.trans_b == Trans::kYes ? g.b[j * g.ldb + p] : g.b[p * g.ldb + j];
        sum += double(a) * double(b);
      }
      if (g.bias != nullptr) sum += double(g.bias[j]);
      g.c[i * g.ldc + j] = static_cast<float>(sum);
    }
  }
}

namespace {
Head<float> as_head(const AttentionHead& h) {
  return {h.tokens, h.head_dim, h.q, h.k, h.v, h.qkv_stride, h.out_stride, double(h.scale)};
}
}  // namespace

void attention_forward(const AttentionHead& head, float* out, float* lse) {
  attention_forward_body(as_head(head), out, lse);
}
void attention_backward(const AttentionHead& head, const float* out, const float* dout, const float* lse, float* dq,
                        float* dk, float* dv) {
  attention_backward_body(as_head(head), out, dout, lse, dq, dk, dv);
}

void gelu_forward(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(gelu(double(x[i])));
}
void gelu_backward(const float* x, const float* dy, float* dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dx[i] = static_cast<float>(double(dy[i]) * gelu_slope(double(x[i])));
}
void silu_forward(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(silu(double(x[i])));
}
void silu_backward(const float* x, const float* dy, float* dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dx[i] = static_cast<float>(double(dy[i]) * silu_slope(double(x[i])));
}

void gate_residual_forward(const float* x, const float* gate, const float* h, float* y, int64_t rows, int64_t cols) {
  gate_residual_forward_body(x, gate, h, y, rows, cols);
}
void gate_residual_backward_columns(const float* dy, const float* h, int64_t stride, float* dgate, int64_t rows,
                                    int64_t cols) {
  gate_residual_backward_columns_body(dy, h, stride, dgate, rows, cols);
}

void layer_norm_modulate_forward(const float* x, const float* shift, const float* scale, float* y, float* mean,
                                 float* rstd, int64_t rows, int64_t cols, float eps) {
  layer_norm_modulate_forward_body(x, shift, scale, y, mean, rstd, rows, cols, double(eps));
}
void layer_norm_modulate_backward_rows(const float* x, const float* mean, const float* rstd, const float* scale,
                                       const float* dy, float* dx, int64_t rows, int64_t cols) {
  layer_norm_modulate_backward_rows_body(x, mean, rstd, scale, dy, dx, rows, cols);
}
void layer_norm_modulate_backward_columns(const float* x, const float* mean, const float* rstd, const float* dy,
                                          int64_t stride, float* dshift, float* dscale, int64_t rows, int64_t cols) {
  layer_norm_modulate_backward_columns_body(x, mean, rstd, dy, stride, dshift, dscale, rows, cols);
}

void column_sums(const float* dy, int64_t stride, float* db, int64_t rows, int64_t cols) {
  for (int64_t j = 0; j < cols; ++j) {
    double sum = double(db[j]);
    for (int64_t r = 0; r < rows; ++r) sum += double(dy[r * stride + j]);
    db[j] = static_cast<float>(sum);
  }
}

void adamw_ema(const AdamWStep& s, const float* g, float* p, float* m, float* v, float* ema, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double gradient = s.grad_scale * double(g[i]);
    const double first = s.beta1 * double(m[i]) + (1 - s.beta1) * gradient;
    const double second = s.beta2 * double(v[i]) + (1 - s.beta2) * gradient * gradient;
    const double decayed = double(p[i]) - s.lr * s.weight_decay * double(p[i]);
    const double next = decayed - s.lr / s.bias1 * first / (std::sqrt(second) / std::sqrt(s.bias2) + s.eps);
    m[i] = static_cast<float>(first);
    v[i] = static_cast<float>(second);
    p[i] = static_cast<float>(next);
    if (ema != nullptr) ema[i] = static_cast<float>(s.ema_decay * double(ema[i]) + (1 - s.ema_decay) * next);
  }
}

}  // namespace ditrain::kernels::ref
