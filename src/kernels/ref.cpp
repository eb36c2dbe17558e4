// kernels::ref on f32 arrays.
#include "ditrain/kernels/ref.hpp"

#include "ditrain/kernels/attention.hpp"
#include "ditrain/kernels/gemm.hpp"
#include "ref_bodies.hpp"

namespace ditrain::kernels::ref {

namespace {

float element(const void* p, DType type, int64_t i) {
  return type == DType::kF32 ? static_cast<const float*>(p)[i] : to_f32(static_cast<const BFloat16*>(p)[i]);
}
void set_element(void* p, DType type, int64_t i, double value) {
  if (type == DType::kF32)
    static_cast<float*>(p)[i] = static_cast<float>(value);
  else
    static_cast<BFloat16*>(p)[i] = to_bf16(static_cast<float>(value));
}

// Where row r, column j of an operand that are patches lies.
int64_t pixel_of(const Patches& x, int64_t r, int64_t j) {
  const int64_t P = x.size, gw = x.width / P, patches = x.height / P * gw;
  r += x.first_row, j += x.first_column;
  const int64_t y = r % patches / gw * P + j / P % P, column = r % gw * P + j % P;
  return ((r / patches * x.channels + j / (P * P)) * x.height + y) * x.width + column;
}

// Where row r, column j of an operand of windows lies; -1: outside of the image.
int64_t window_pixel(const Window& x, int64_t r, int64_t j) {
  r += x.first_row;
  const int64_t scale = x.doubled ? 2 : 1, tap = j / x.channels, each = x.out_h * x.out_w;
  const int64_t row = r % each / x.out_w * x.stride_h - x.pad_top + tap / x.kernel_w;
  const int64_t col = r % x.out_w * x.stride_w - x.pad_left + tap % x.kernel_w;
  if (row < 0 || col < 0 || row >= scale * x.height || col >= scale * x.width) return -1;
  return ((r / each * x.height + row / scale) * x.width + col / scale) * x.pixel_stride + j % x.channels;
}
double window_at(const GemmArgs& g, int64_t r, int64_t j) {
  const int64_t at = window_pixel(g.window_a, r, j);
  const float x = at < 0 ? 0.0f : element(g.a, g.a_type, at);
  return double(g.arithmetic == DType::kF32 ? x : to_f32(to_bf16(x)));
}

// Row r, column j of an operand's array, normalised and rounded as the product takes it.
double operand(const GemmArgs& g, const void* p, DType type, int64_t stride, const Normalise& norm,
               const Patches& patches, int64_t r, int64_t j) {
  double x = double(element(p, type, patches.size > 0 ? pixel_of(patches, r, j) : r * stride + j));
  if (norm.mean != nullptr) {
    const int64_t at = (norm.first_row + r) / norm.rows_per_sample * norm.cond_stride + j;
    x = (x - double(norm.mean[r])) * double(norm.rstd[r]) * (1 + double(norm.scale[at])) + double(norm.shift[at]);
  }
  return g.arithmetic == DType::kF32 ? x : double(to_f32(to_bf16(static_cast<float>(x))));
}
double a_at(const GemmArgs& g, int64_t i, int64_t p) {
  if (g.window_a.channels > 0) return window_at(g, i, p);
  return g.trans_a == Trans::kYes ? operand(g, g.a, g.a_type, g.lda, g.normalise_a, g.patches_a, p, i)
                                  : operand(g, g.a, g.a_type, g.lda, g.normalise_a, g.patches_a, i, p);
}
double b_at(const GemmArgs& g, int64_t p, int64_t j) {
  return g.trans_b == Trans::kYes ? operand(g, g.b, g.b_type, g.ldb, g.normalise_b, g.patches_b, j, p)
                                  : operand(g, g.b, g.b_type, g.ldb, g.normalise_b, g.patches_b, p, j);
}

void finish(const GemmArgs& g, int64_t i, int64_t j, double t) {
  const Epilogue& e = g.epilogue;
  const int64_t at = i * g.ldc + j, in = i * e.in_stride + j, out = i * e.out_stride + j;
  if (e.kind == EpilogueKind::kGeluBackward) t *= gelu_slope(double(element(e.in, g.c_type, in)));
  if (e.kind == EpilogueKind::kSwigluBackward) {
    const double u = double(element(e.in, g.c_type, in)), v = double(element(e.in, g.c_type, in + e.half));
    set_element(g.c, g.c_type, at + e.half, t * silu(u));
    if (e.out != nullptr) set_element(e.out, g.c_type, out, silu(u) * v);
    t *= v * silu_slope(u);
  }
  if (e.kind == EpilogueKind::kResidual) t += double(element(e.in, g.c_type, in));
  if (e.kind == EpilogueKind::kRelu) t = t > 0 || std::isnan(t) ? t : 0;
  if (e.kind == EpilogueKind::kSilu) t = silu(t);
  set_element(g.c, g.c_type, at, t);
  const double c = double(element(g.c, g.c_type, at));
  if (e.kind == EpilogueKind::kGelu) set_element(e.out, g.c_type, out, gelu(c));
  if (e.kind == EpilogueKind::kSwiglu) set_element(e.out, g.c_type, out, silu(double(element(e.in, g.c_type, in))) * c);
  if (e.kind == EpilogueKind::kGeluBackward && e.out != nullptr)
    set_element(e.out, g.c_type, out, gelu(double(element(e.in, g.c_type, in))));
  if (e.kind == EpilogueKind::kGateResidual) {
    const double gate = double(e.gate[(e.first_row + i) / e.rows_per_sample * e.cond_stride + j]);
    set_element(e.out, DType::kF32, out, double(element(e.in, DType::kF32, in)) + gate * c);
  }
}

void add_moments(const GemmArgs& g) {
  const Moments& m = g.moments;
  for (int64_t i = 0; i < g.m; ++i) {
    const int64_t row = m.first_row + i;
    for (int64_t j = 0; j < g.n; ++j) {
      float* at = m.sums + row / m.rows * 3 * m.stride + j;
      const float c = element(g.c, g.c_type, i * g.ldc + j);
      if (row % m.rows == 0) at[0] = c, at[m.stride] = at[2 * m.stride] = 0;
      const double d = double(c) - double(at[0]);
      at[m.stride] = static_cast<float>(double(at[m.stride]) + d);
      at[2 * m.stride] = static_cast<float>(double(at[2 * m.stride]) + d * d);
    }
  }
}

}  // namespace

void gemm(const GemmArgs& g) {
  // Rows of op(a) and columns of op(b), read once: each value is needed n or m times.
  std::vector<double> a, b;
  a.reserve(size_t(g.m * g.k)), b.reserve(size_t(g.k * g.n));
  for (int64_t i = 0; i < g.m; ++i)
    for (int64_t p = 0; p < g.k; ++p) a.push_back(a_at(g, i, p));
  for (int64_t j = 0; j < g.n; ++j)
    for (int64_t p = 0; p < g.k; ++p) b.push_back(b_at(g, p, j));
  for (int64_t i = 0; i < g.m; ++i) {
    const double* row = a.data() + i * g.k;
    for (int64_t j = 0; j < g.n; ++j) {
      const double* column = b.data() + j * g.k;
      double sum = g.accumulate ? double(element(g.c, g.c_type, i * g.ldc + j)) : 0.0;
      for (int64_t p = 0; p < g.k; ++p) sum += row[p] * column[p];
      if (g.bias != nullptr) sum += double(g.bias[j]);
      finish(g, i, j, sum);
    }
    if (g.a_row_sums == nullptr) continue;
    double sum = double(g.a_row_sums[i]);
    for (int64_t p = 0; p < g.k; ++p) sum += row[p];
    g.a_row_sums[i] = static_cast<float>(sum);
  }
  if (g.moments.sums != nullptr) add_moments(g);
}

namespace {
Head<float> as_head(const AttentionHead& h) {
  const auto f32 = [](const void* p) { return static_cast<const float*>(p); };
  return {h.tokens, h.head_dim, f32(h.q), f32(h.k), f32(h.v), h.qkv_stride, h.out_stride, double(h.scale)};
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
void gelu_erf_forward(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(gelu_erf(double(x[i])));
}
void gelu_erf_backward(const float* x, const float* dy, float* dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dx[i] = static_cast<float>(double(dy[i]) * gelu_erf_slope(double(x[i])));
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
void gate_residual_backward(const float* dy, const float* gate, const float* h, float* dh, float* dgate, int64_t rows,
                            int64_t cols) {
  gate_residual_backward_body(dy, gate, h, dh, dgate, rows, cols);
}

void layer_norm_modulate_forward(const float* x, const float* shift, const float* scale, float* y, float* mean,
                                 float* rstd, int64_t rows, int64_t cols, float eps) {
  layer_norm_modulate_forward_body(x, shift, scale, y, mean, rstd, rows, cols, double(eps));
}
void layer_norm_modulate_backward(const float* x, const float* mean, const float* rstd, const float* scale,
                                  const float* dy, float* dx, float* dshift, float* dscale, int64_t rows,
                                  int64_t cols) {
  layer_norm_modulate_backward_body(x, mean, rstd, scale, dy, dx, dshift, dscale, rows, cols);
}

void layer_norm_apply(const float* x, const float* mean, const float* rstd, const float* shift, const float* scale,
                      float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double xhat = (double(x[i]) - double(mean[i / cols])) * double(rstd[i / cols]);
    y[i] = static_cast<float>(scale == nullptr ? xhat : xhat * (1 + double(scale[i % cols])) + double(shift[i % cols]));
  }
}
void layer_norm_statistics(const float* x, float* mean, float* rstd, int64_t rows, int64_t cols, float eps) {
  std::vector<float> y(static_cast<size_t>(rows * cols));
  layer_norm_modulate_forward(x, nullptr, nullptr, y.data(), mean, rstd, rows, cols, eps);
}

void rms_norm_statistics(const float* x, float* mean, float* rstd, int64_t rows, int64_t cols, float eps) {
  for (int64_t r = 0; r < rows; ++r) {
    double m, s;
    row_statistics(false, x + r * cols, cols, double(eps), m, s);
    mean[r] = 0, rstd[r] = static_cast<float>(s);
  }
}
void rms_norm_modulate_backward(const float* x, const float* rstd, const float* scale, const float* dy, float* dx,
                                float* dshift, float* dscale, int64_t rows, int64_t cols) {
  layer_norm_modulate_backward_body<float>(x, nullptr, rstd, scale, dy, dx, dshift, dscale, rows, cols);
}
void rotate_pairs(const float* x, int64_t stride, const float* a, const float* b, float* y, int64_t rows,
                  int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, x += stride, y += stride)
    for (int64_t j = 0; j < cols; j += 2) {
      const double even = double(x[j]), odd = j + 1 < cols ? double(x[j + 1]) : 0;
      y[j] = static_cast<float>(double(a[j]) * even + double(b[j]) * odd);
      if (j + 1 < cols) y[j + 1] = static_cast<float>(double(a[j + 1]) * odd + double(b[j + 1]) * even);
    }
}

void add(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(double(x[i]) + double(y[i]));
}
void scale_add(float a, const float* x, float b, const float* noise, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(double(a) * double(x[i]) + double(b) * double(noise[i]));
}
void move_average(float share, const float* x, float* average, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    average[i] = static_cast<float>(double(average[i]) + double(share) * (double(x[i]) - double(average[i])));
}
double sum_squares(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(x[i]) * double(x[i]);
  return sum;
}
int64_t find_non_finite(const float* x, int64_t n) {
  const float* at = std::find_if(x, x + n, [](float v) { return !std::isfinite(v); });
  return at == x + n ? -1 : at - x;
}
void convert_to_bf16(const float* x, BFloat16* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = to_bf16(x[i]);
}
void convert_to_f32(const BFloat16* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = to_f32(x[i]);
}

void column_sums(const float* dy, int64_t stride, float* db, int64_t rows, int64_t cols) {
  for (int64_t j = 0; j < cols; ++j) {
    double sum = double(db[j]);
    for (int64_t r = 0; r < rows; ++r) sum += double(dy[r * stride + j]);
    db[j] = static_cast<float>(sum);
  }
}

void layer_norm_forward(const float* x, int64_t stride, const float* weight, const float* bias, float* y, int64_t rows,
                        int64_t cols, float eps) {
  norm_forward_body(true, x, stride, weight, bias, y, rows, cols, double(eps));
}
void layer_norm_backward(const float* x, int64_t stride, const float* weight, const float* dy, float* dx,
                         float* dweight, float* dbias, int64_t rows, int64_t cols, float eps) {
  norm_backward_body(true, x, stride, weight, dy, dx, dweight, dbias, rows, cols, double(eps));
}
void rms_norm_forward(const float* x, int64_t stride, const float* weight, float* y, int64_t rows, int64_t cols,
                      float eps) {
  norm_forward_body<float>(false, x, stride, weight, nullptr, y, rows, cols, double(eps));
}
void rms_norm_backward(const float* x, int64_t stride, const float* weight, const float* dy, float* dx, float* dweight,
                       int64_t rows, int64_t cols, float eps) {
  norm_backward_body<float>(false, x, stride, weight, dy, dx, dweight, nullptr, rows, cols, double(eps));
}

void column_moments(const float* x, int64_t stride, float* first, float* sum, float* squares, int64_t rows,
                    int64_t cols) {
  for (int64_t j = 0; j < cols; ++j) {
    double d_sum = 0, d_squares = 0;
    first[j] = rows == 0 ? 0 : x[j];
    for (int64_t r = 0; r < rows; ++r) {
      const double d = double(x[r * stride + j]) - double(first[j]);
      d_sum += d, d_squares += d * d;
    }
    sum[j] = static_cast<float>(d_sum), squares[j] = static_cast<float>(d_squares);
  }
}
void group_norm_apply(const float* x, const float* mean, const float* scale, const float* shift, float* y, int64_t rows,
                      int64_t cols) {
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int64_t j = i % cols;
    y[i] = static_cast<float>((double(x[i]) - double(mean[j])) * double(scale[j]) + double(shift[j]));
  }
}
void group_norm_silu(const float* x, const float* mean, const float* scale, const float* shift, float* y, int64_t rows,
                     int64_t cols) {
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int64_t j = i % cols;
    y[i] = static_cast<float>(silu((double(x[i]) - double(mean[j])) * double(scale[j]) + double(shift[j])));
  }
}

void softmax_forward(const float* x, float* y, int64_t rows, int64_t cols) { softmax_forward_body(x, y, rows, cols); }
void softmax_backward(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols) {
  softmax_backward_body(y, dy, dx, rows, cols);
}

double square_error(const float* out, const float* target, double weight, float* dout, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double error = double(out[i]) - double(target[i]);
    sum += error * error;
    if (dout != nullptr) dout[i] = static_cast<float>(weight * error);
  }
  return sum;
}

double normal_kl(const NormalKl& kl, double out_weight, float* dout, double v_weight, float* dv, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double g = (kl.v == nullptr ? 0 : kl.by_v * double(kl.v[i])) + kl.at_v_0;
    const double d = kl.by_out * double(kl.out[i]) + kl.by_x_t * double(kl.x_t[i]) + kl.by_x0 * double(kl.x0[i]);
    const double slope = d * std::exp(-g) * kl.inverse_true_variance;
    sum += 0.5 * (g - 1 + std::exp(-g) + d * slope);
    if (dout != nullptr) dout[i] = static_cast<float>(out_weight * slope);
    if (dv != nullptr) dv[i] = static_cast<float>(v_weight * 0.5 * (1 - std::exp(-g) - d * slope));
  }
  return sum;
}

// Averages in the form of the kernels and of torch, a + (1 - beta) (b - a): infinities meet as there.
void adamw_ema(const AdamWStep& s, const float* g, float* p, float* m, float* v, float* ema, BFloat16* copy,
               int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double gradient = s.grad_scale * double(g[i]);
    const double first = double(m[i]) + (1 - s.beta1) * (gradient - double(m[i]));
    const double second = s.beta2 * double(v[i]) + (1 - s.beta2) * gradient * gradient;
    const double decayed = double(p[i]) * (1 - s.lr * s.weight_decay);
    const double next = decayed - s.lr / s.bias1 * first / (std::sqrt(second) / std::sqrt(s.bias2) + s.eps);
    m[i] = static_cast<float>(first);
    v[i] = static_cast<float>(second);
    p[i] = static_cast<float>(next);
    if (copy != nullptr) copy[i] = to_bf16(p[i]);
    if (ema != nullptr) ema[i] = static_cast<float>(double(ema[i]) + (1 - s.ema_decay) * (next - double(ema[i])));
  }
}

}  // namespace ditrain::kernels::ref
