// The oracle: plain loops, f64 arithmetic, readable in a minute. T is the type of the arrays: float behind the public
// functions of kernels::ref, double in the finite-difference tests. Formulas and shapes: the public headers.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ditrain/kernels/elementwise.hpp"

namespace ditrain::kernels::ref {

inline constexpr double kGeluRoot = 0.79788456080286535588;  // sqrt(2 / pi)

inline double gelu_argument(double x) { return kGeluRoot * (x + 0.044715 * x * x * x); }
// 0.5 (1 + tanh u) is 1 / (1 + e^-2u); the second form loses nothing where tanh u is close to -1.
inline double gelu(double x) {
  if (std::isinf(x)) return x > 0 ? x : -0.0;  // the limits, here and below
  return x / (1 + std::exp(-2 * gelu_argument(x)));
}
inline double gelu_slope(double x) {
  if (std::isinf(x)) return x > 0 ? 1 : -0.0;
  const double s = 1 / (1 + std::exp(-2 * gelu_argument(x)));
  return s + x * s * (1 - s) * 2 * kGeluRoot * (1 + 3 * 0.044715 * x * x);
}
inline double gelu_erf(double x) {
  if (std::isinf(x)) return x > 0 ? x : -0.0;
  return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
}
inline double gelu_erf_slope(double x) {
  if (std::isinf(x)) return x > 0 ? 1 : -0.0;
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-0.5 * x * x) * 0.5 * kGeluRoot;
}
inline double silu(double x) { return std::isinf(x) ? (x > 0 ? x : -0.0) : x / (1 + std::exp(-x)); }
inline double silu_slope(double x) {
  if (std::isinf(x)) return x > 0 ? 1 : -0.0;
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}

template <class T>
void gate_residual_forward_body(const T* x, const T* gate, const T* h, T* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows * cols; ++i) {
    y[i] = static_cast<T>(double(x[i]) + double(gate[i % cols]) * double(h[i]));
  }
}

template <class T>
void gate_residual_backward_body(const T* dy, const T* gate, const T* h, T* dh, T* dgate, int64_t rows, int64_t cols) {
  for (int64_t j = 0; j < cols; ++j) {
    double sum = 0;
    for (int64_t i = j; i < rows * cols; i += cols) {
      sum += double(dy[i]) * double(h[i]);
      dh[i] = static_cast<T>(double(gate[j]) * double(dy[i]));
    }
    dgate[j] = static_cast<T>(sum);
  }
}

template <class T>
void layer_norm_modulate_forward_body(const T* x, const T* shift, const T* scale, T* y, T* mean, T* rstd, int64_t rows,
                                      int64_t cols, double eps) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = x + r * cols;
    double sum = 0, squares = 0;
    for (int64_t j = 0; j < cols; ++j) sum += double(row[j]);
    const double m = sum / double(cols);
    for (int64_t j = 0; j < cols; ++j) squares += (double(row[j]) - m) * (double(row[j]) - m);
    const double s = 1 / std::sqrt(squares / double(cols) + eps);
    for (int64_t j = 0; j < cols; ++j) {
      const double xhat = (double(row[j]) - m) * s;
      y[r * cols + j] = static_cast<T>(scale == nullptr ? xhat : xhat * (1 + double(scale[j])) + double(shift[j]));
    }
    mean[r] = static_cast<T>(m);
    rstd[r] = static_cast<T>(s);
  }
}

/// Without mean: RMSNorm.
template <class T>
void layer_norm_modulate_backward_body(const T* x, const T* mean, const T* rstd, const T* scale, const T* dy, T* dx,
                                       T* dshift, T* dscale, int64_t rows, int64_t cols) {
  std::vector<double> shift_sum(static_cast<size_t>(cols)), scale_sum(shift_sum);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r * cols;
    const auto g = [&](int64_t j) { return double(dy[at + j]) * (1 + double(scale[j])); };
    const auto xhat = [&](int64_t j) {
      return (double(x[at + j]) - (mean == nullptr ? 0 : double(mean[r]))) * double(rstd[r]);
    };
    double mean_g = 0, mean_gx = 0;
    for (int64_t j = 0; j < cols; ++j) {
      if (mean != nullptr) mean_g += g(j) / double(cols);
      mean_gx += g(j) * xhat(j) / double(cols);
    }
    for (int64_t j = 0; j < cols; ++j) {
      const double change = double(rstd[r]) * (g(j) - mean_g - xhat(j) * mean_gx);
      dx[at + j] = static_cast<T>(double(dx[at + j]) + change);
      shift_sum[static_cast<size_t>(j)] += double(dy[at + j]);
      scale_sum[static_cast<size_t>(j)] += double(dy[at + j]) * xhat(j);
    }
  }
  for (int64_t j = 0; j < cols; ++j) {
    dshift[j] = static_cast<T>(shift_sum[static_cast<size_t>(j)]);
    dscale[j] = static_cast<T>(scale_sum[static_cast<size_t>(j)]);
  }
}

/// Mean and 1 / sqrt(var + eps) of a row; not centred: 0 and 1 / sqrt(mean of squares + eps).
template <class T>
void row_statistics(bool centred, const T* x, int64_t cols, double eps, double& mean, double& rstd) {
  double sum = 0, squares = 0;
  for (int64_t j = 0; centred && j < cols; ++j) sum += double(x[j]);
  mean = sum / double(cols);
  for (int64_t j = 0; j < cols; ++j) squares += (double(x[j]) - mean) * (double(x[j]) - mean);
  rstd = 1 / std::sqrt(squares / double(cols) + eps);
}

/// LayerNorm with a bias, RMSNorm (not centred) without.
template <class T>
void norm_forward_body(bool centred, const T* x, int64_t stride, const T* weight, const T* bias, T* y, int64_t rows,
                       int64_t cols, double eps) {
  for (int64_t r = 0; r < rows; ++r, x += stride, y += cols) {
    double mean, rstd;
    row_statistics(centred, x, cols, eps, mean, rstd);
    for (int64_t j = 0; j < cols; ++j) {
      const double xhat = (double(x[j]) - mean) * rstd;
      y[j] = static_cast<T>(xhat * double(weight[j]) + (bias == nullptr ? 0 : double(bias[j])));
    }
  }
}

template <class T>
void norm_backward_body(bool centred, const T* x, int64_t stride, const T* weight, const T* dy, T* dx, T* dweight,
                        T* dbias, int64_t rows, int64_t cols, double eps) {
  std::vector<double> weight_sum(static_cast<size_t>(cols)), bias_sum(weight_sum);
  for (int64_t r = 0; r < rows; ++r, x += stride, dx += stride, dy += cols) {
    double mean, rstd, mean_g = 0, mean_gx = 0;
    row_statistics(centred, x, cols, eps, mean, rstd);
    for (int64_t j = 0; j < cols; ++j) {
      const double g = double(dy[j]) * double(weight[j]), xhat = (double(x[j]) - mean) * rstd;
      if (centred) mean_g += g / double(cols);
      mean_gx += g * xhat / double(cols);
      weight_sum[static_cast<size_t>(j)] += double(dy[j]) * xhat;
      bias_sum[static_cast<size_t>(j)] += double(dy[j]);
    }
    for (int64_t j = 0; j < cols; ++j) {
      const double xhat = (double(x[j]) - mean) * rstd;
      dx[j] = static_cast<T>(rstd * (double(dy[j]) * double(weight[j]) - mean_g - xhat * mean_gx));
    }
  }
  for (int64_t j = 0; j < cols; ++j) {
    dweight[j] = static_cast<T>(weight_sum[static_cast<size_t>(j)]);
    if (dbias != nullptr) dbias[j] = static_cast<T>(bias_sum[static_cast<size_t>(j)]);
  }
}

template <class T>
void softmax_forward_body(const T* x, T* y, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    double highest = -std::numeric_limits<double>::infinity(), total = 0;
    for (int64_t j = 0; j < cols; ++j) highest = std::max(highest, double(x[j]));
    for (int64_t j = 0; j < cols; ++j) total += std::exp(double(x[j]) - highest);
    for (int64_t j = 0; j < cols; ++j) y[j] = static_cast<T>(std::exp(double(x[j]) - highest) / total);
  }
}

template <class T>
void softmax_backward_body(const T* y, const T* dy, T* dx, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, y += cols, dy += cols, dx += cols) {
    double mean = 0;
    for (int64_t j = 0; j < cols; ++j) mean += double(y[j]) * double(dy[j]);
    for (int64_t j = 0; j < cols; ++j) dx[j] = static_cast<T>(double(y[j]) * (double(dy[j]) - mean));
  }
}

/// AttentionHead for arrays of T.
template <class T>
struct Head {
  int64_t tokens, head_dim;
  const T *q, *k, *v;
  int64_t qkv_stride, out_stride;
  double scale;
};

/// scale q[t] . k[s] for all s
template <class T>
std::vector<double> score_row(const Head<T>& head, int64_t t) {
  std::vector<double> score(static_cast<size_t>(head.tokens));
  for (int64_t s = 0; s < head.tokens; ++s) {
    double sum = 0;
    for (int64_t d = 0; d < head.head_dim; ++d) {
      sum += double(head.q[t * head.qkv_stride + d]) * double(head.k[s * head.qkv_stride + d]);
    }
    score[static_cast<size_t>(s)] = sum * head.scale;
  }
  return score;
}

template <class T>
void attention_forward_body(const Head<T>& head, T* out, T* lse) {
  for (int64_t t = 0; t < head.tokens; ++t) {
    std::vector<double> p = score_row(head, t);
    const double highest = *std::max_element(p.begin(), p.end());
    double total = 0;
    for (double& score : p) total += score = std::exp(score - highest);
    for (int64_t d = 0; d < head.head_dim; ++d) {
      double sum = 0;
      for (int64_t s = 0; s < head.tokens; ++s) {
        sum += p[static_cast<size_t>(s)] * double(head.v[s * head.qkv_stride + d]);
      }
      out[t * head.out_stride + d] = static_cast<T>(sum / total);
    }
    lse[t] = static_cast<T>(highest + std::log(total));
  }
}

template <class T>
void attention_backward_body(const Head<T>& head, const T* out, const T* dout, const T* lse, T* dq, T* dk, T* dv) {
  const int64_t dim = head.head_dim, stride = head.qkv_stride;
  const auto size = static_cast<size_t>(head.tokens * dim);
  std::vector<double> sum_dk(size), sum_dv(size);
  for (int64_t t = 0; t < head.tokens; ++t) {
    const std::vector<double> score = score_row(head, t);
    std::vector<double> sum_dq(static_cast<size_t>(dim));
    const T* g = dout + t * head.out_stride;
    double delta = 0;
    for (int64_t d = 0; d < dim; ++d) delta += double(g[d]) * double(out[t * head.out_stride + d]);
    for (int64_t s = 0; s < head.tokens; ++s) {
      const double p = std::exp(score[static_cast<size_t>(s)] - double(lse[t]));
      double dp = 0;
      for (int64_t d = 0; d < dim; ++d) dp += double(g[d]) * double(head.v[s * stride + d]);
      const double ds = p * (dp - delta) * head.scale;
      for (int64_t d = 0; d < dim; ++d) {
        sum_dq[static_cast<size_t>(d)] += ds * double(head.k[s * stride + d]);
        sum_dk[static_cast<size_t>(s * dim + d)] += ds * double(head.q[t * stride + d]);
        sum_dv[static_cast<size_t>(s * dim + d)] += p * double(g[d]);
      }
    }
    for (int64_t d = 0; d < dim; ++d) dq[t * stride + d] = static_cast<T>(sum_dq[static_cast<size_t>(d)]);
  }
  for (int64_t i = 0; i < head.tokens * dim; ++i) {
    dk[i / dim * stride + i % dim] = static_cast<T>(sum_dk[static_cast<size_t>(i)]);
    dv[i / dim * stride + i % dim] = static_cast<T>(sum_dv[static_cast<size_t>(i)]);
  }
}

}  // namespace ditrain::kernels::ref
