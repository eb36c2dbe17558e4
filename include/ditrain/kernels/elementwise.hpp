// Element-wise work, norms and reductions on raw pointers; one thread's share. Arithmetic is f32. Activations are f32
// or bf16 (rounded to nearest even when stored); the residual stream, conditioning and sums are f32. The shape alone
// fixes the order of a sum. No kernel flushes subnormal numbers to zero (exceptions: GELU, SiLU, convert() and bf16
// GEMMs). The elements of a row are contiguous; rows are `stride` elements apart, or `cols` where there is no `stride`.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ditrain/base/dtype.hpp"

namespace ditrain::kernels {

/// y = 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), the tanh approximation of GELU; y may alias x.
/// Numerics: error of y at most (4 + 3 |2u|) 2^-24 |y|, plus 6e-37 where 2u < -87. y is x from about x = 6 up and -0
///           from about x = -10 down, also at infinity. NaN stays NaN
void gelu_forward(const float* x, float* y, int64_t n);
void gelu_forward(const BFloat16* x, BFloat16* y, int64_t n);
/// dx = dy gelu'(x), overwritten; dx may alias x or dy.
/// Numerics: error at most 2^-21 |dy|; gelu' is 1 from about x = 6 up and -0 from about x = -10 down
void gelu_backward(const float* x, const float* dy, float* dx, int64_t n);
void gelu_backward(const BFloat16* x, const BFloat16* dy, BFloat16* dx, int64_t n);
/// y = x P, P = 0.5 erfc(-x / sqrt(2)), the exact GELU; y may alias x.
/// Numerics: error of y at most (16 + 3 x^2) 2^-24 |y|, plus 6e-37 from about x = -9 down. NaN stays NaN
void gelu_erf_forward(const float* x, float* y, int64_t n);
void gelu_erf_forward(const BFloat16* x, BFloat16* y, int64_t n);
/// dx = dy (P + x exp(-x^2 / 2) / sqrt(2 pi)), overwritten; dx may alias x or dy. Error at most 2^-21 |dy|.
void gelu_erf_backward(const float* x, const float* dy, float* dx, int64_t n);
void gelu_erf_backward(const BFloat16* x, const BFloat16* dy, BFloat16* dx, int64_t n);
/// y = x / (1 + exp(-x)); y may alias x. Errors are those of gelu_forward with x in place of 2u; y is x from about x =
/// 20 up and -0 from about x = -89 down.
void silu_forward(const float* x, float* y, int64_t n);
/// dx = dy silu'(x), overwritten; dx may alias x or dy
void silu_backward(const float* x, const float* dy, float* dx, int64_t n);
void add(const float* x, float* y, int64_t n);  ///< y += x
void add(const float* x, BFloat16* y, int64_t n);
double sum_squares(const float* x, int64_t n);       ///< f64 accumulation
int64_t find_non_finite(const float* x, int64_t n);  ///< first index of NaN or infinity, or -1
int64_t find_non_finite(const BFloat16* x, int64_t n);
/// Rounds to nearest even; NaN stays NaN (quiet). Subnormals are kept, except on CPUs with AVX512-BF16: their
/// conversion instruction, which every function here that writes bf16 uses, flushes them to zeros of the same sign, and
/// their bf16 dot products treat subnormal inputs as 0.
void convert_to_bf16(const float* x, BFloat16* y, int64_t n);
void convert_to_f32(const BFloat16* x, float* y, int64_t n);
inline void convert(const float* x, BFloat16* y, int64_t n) { convert_to_bf16(x, y, n); }
inline void convert(const BFloat16* x, float* y, int64_t n) { convert_to_f32(x, y, n); }

/// y[r,:] = x[r,:] + gate h[r,:] for the rows of one sample; gate [cols]. y may alias x.
void gate_residual_forward(const float* x, const float* gate, const float* h, float* y, int64_t rows, int64_t cols);
void gate_residual_forward(const float* x, const float* gate, const BFloat16* h, float* y, int64_t rows, int64_t cols);
/// dh[r,:] = gate dy[r,:] and dgate = sum_r dy[r,:] h[r,:], both overwritten; dh may alias dy or h. Every sum is one
/// chain in increasing r; a caller that splits the rows chooses the order in which it adds the parts.
void gate_residual_backward(const float* dy, const float* gate, const float* h, float* dh, float* dgate, int64_t rows,
                            int64_t cols);
void gate_residual_backward(const float* dy, const float* gate, const BFloat16* h, BFloat16* dh, float* dgate,
                            int64_t rows, int64_t cols);

/// y[r,:] = (x[r,:] - mean[r]) rstd[r] (1 + scale) + shift; rstd = 1 / sqrt(var + eps), biased two-pass variance.
/// Shapes:   shift, scale [cols], or both null for plain LayerNorm; mean, rstd [rows], written
void layer_norm_modulate_forward(const float* x, const float* shift, const float* scale, float* y, float* mean,
                                 float* rstd, int64_t rows, int64_t cols, float eps);
void layer_norm_modulate_forward(const float* x, const float* shift, const float* scale, BFloat16* y, float* mean,
                                 float* rstd, int64_t rows, int64_t cols, float eps);
/// Computes y from given mean and rstd, bit-identical to layer_norm_modulate_forward.
void layer_norm_apply(const float* x, const float* mean, const float* rstd, const float* shift, const float* scale,
                      float* y, int64_t rows, int64_t cols);
void layer_norm_apply(const float* x, const float* mean, const float* rstd, const float* shift, const float* scale,
                      BFloat16* y, int64_t rows, int64_t cols);
/// Computes mean and rstd only, bit-identical to layer_norm_modulate_forward.
void layer_norm_statistics(const float* x, float* mean, float* rstd, int64_t rows, int64_t cols, float eps);
/// Math:     dx[r,:] += rstd (g - mean(g) - xhat mean(g xhat)), g = dy (1 + scale), xhat = (x - mean) rstd
///           dshift = sum_r dy[r,:], dscale = sum_r dy[r,:] xhat[r,:]
/// Grads:    dx is added to; dshift and dscale [cols] are overwritten. dx aliases nothing
/// Numerics: sums over r as in gate_residual_backward
void layer_norm_modulate_backward(const float* x, const float* mean, const float* rstd, const float* scale,
                                  const float* dy, float* dx, float* dshift, float* dscale, int64_t rows, int64_t cols);
void layer_norm_modulate_backward(const float* x, const float* mean, const float* rstd, const float* scale,
                                  const BFloat16* dy, float* dx, float* dshift, float* dscale, int64_t rows,
                                  int64_t cols);

/// RMSNorm counterpart of layer_norm_statistics: rstd = 1 / sqrt(mean(x^2) + eps). It writes 0 as mean, so that
/// layer_norm_apply and GEMMs that normalise an operand serve both norms.
void rms_norm_statistics(const float* x, float* mean, float* rstd, int64_t rows, int64_t cols, float eps);
/// RMSNorm counterpart of layer_norm_modulate_backward: dx[r,:] += rstd (g - xhat mean(g xhat)), xhat = x rstd; the
/// rest as there.
void rms_norm_modulate_backward(const float* x, const float* rstd, const float* scale, const float* dy, float* dx,
                                float* dshift, float* dscale, int64_t rows, int64_t cols);
void rms_norm_modulate_backward(const float* x, const float* rstd, const float* scale, const BFloat16* dy, float* dx,
                                float* dshift, float* dscale, int64_t rows, int64_t cols);

/// Rotates pairs of neighbouring elements (RoPE): y[r,j] = a[j] x[r,j] + b[j] x[r,j^1], where a has the cosines of the
/// angles and b the sines, negated at even j. x and y have row stride `stride`. If the last element has no neighbour, 0
/// takes its place. y may be x.
void rotate_pairs(const float* x, int64_t stride, const float* a, const float* b, float* y, int64_t rows, int64_t cols);
void rotate_pairs(const BFloat16* x, int64_t stride, const float* a, const float* b, BFloat16* y, int64_t rows,
                  int64_t cols);

/// LayerNorm of heads, from rows of stride `stride` into rows without gaps: y[r,:] = xhat weight + bias, xhat = (x[r,:]
/// - mean) rstd, rstd as above. No statistics are stored: the rows are narrow, and backward normalises again.
void layer_norm_forward(const float* x, int64_t stride, const float* weight, const float* bias, float* y, int64_t rows,
                        int64_t cols, float eps);
void layer_norm_forward(const BFloat16* x, int64_t stride, const float* weight, const float* bias, BFloat16* y,
                        int64_t rows, int64_t cols, float eps);
/// Math:     dx[r,:] = rstd (g - mean(g) - xhat mean(g xhat)), g = dy weight
///           dweight = sum_r dy[r,:] xhat[r,:], dbias = sum_r dy[r,:]
/// Shapes:   x and dx have row stride `stride`, dy has no gaps; dweight, dbias [cols]
/// Grads:    all are overwritten; dx aliases nothing
/// Numerics: sums over r as in gate_residual_backward
void layer_norm_backward(const float* x, int64_t stride, const float* weight, const float* dy, float* dx,
                         float* dweight, float* dbias, int64_t rows, int64_t cols, float eps);
void layer_norm_backward(const BFloat16* x, int64_t stride, const float* weight, const BFloat16* dy, BFloat16* dx,
                         float* dweight, float* dbias, int64_t rows, int64_t cols, float eps);
/// RMSNorm of heads: y[r,:] = xhat weight, xhat = x[r,:] rstd, rstd = 1 / sqrt(mean(x[r,:]^2) + eps).
void rms_norm_forward(const float* x, int64_t stride, const float* weight, float* y, int64_t rows, int64_t cols,
                      float eps);
void rms_norm_forward(const BFloat16* x, int64_t stride, const float* weight, BFloat16* y, int64_t rows, int64_t cols,
                      float eps);
/// dx[r,:] = rstd (g - xhat mean(g xhat)), g = dy weight; dweight and the rest as for layer_norm_backward.
void rms_norm_backward(const float* x, int64_t stride, const float* weight, const float* dy, float* dx, float* dweight,
                       int64_t rows, int64_t cols, float eps);
void rms_norm_backward(const BFloat16* x, int64_t stride, const float* weight, const BFloat16* dy, BFloat16* dx,
                       float* dweight, int64_t rows, int64_t cols, float eps);

/// db[j] += sum_r dy[r,j] over rows of stride `stride`, j < cols (a slice of columns)
void column_sums(const float* dy, int64_t stride, float* db, int64_t rows, int64_t cols);
void column_sums(const BFloat16* dy, int64_t stride, float* db, int64_t rows, int64_t cols);

/// For every column of x (row stride `stride`): its first value f, the sum of x - f and the sum of (x - f)^2, each one
/// chain in increasing r; all 0 if there are no rows. See Moments in kernels/gemm.hpp.
void column_moments(const float* x, int64_t stride, float* first, float* sum, float* squares, int64_t rows,
                    int64_t cols);
void column_moments(const BFloat16* x, int64_t stride, float* first, float* sum, float* squares, int64_t rows,
                    int64_t cols);
/// y[r,j] = (x[r,j] - mean[j]) scale[j] + shift[j]; may alias
void group_norm_apply(const float* x, const float* mean, const float* scale, const float* shift, float* y, int64_t rows,
                      int64_t cols);
void group_norm_apply(const BFloat16* x, const float* mean, const float* scale, const float* shift, BFloat16* y,
                      int64_t rows, int64_t cols);
/// y = silu(group_norm_apply(x)); may alias
void group_norm_silu(const float* x, const float* mean, const float* scale, const float* shift, float* y, int64_t rows,
                     int64_t cols);
void group_norm_silu(const BFloat16* x, const float* mean, const float* scale, const float* shift, BFloat16* y,
                     int64_t rows, int64_t cols);

/// One AdamW step fused with the EMA, reading g, m, v, p, ema once and writing m, v, p, ema once (torch.optim.AdamW):
///   g' = grad_scale g;  p -= lr weight_decay p;  m = b1 m + (1-b1) g';  v = b2 v + (1-b2) g'^2
///   p -= (lr / bias1) m / (sqrt(v) / sqrt(bias2) + eps);  ema = ema_decay ema + (1 - ema_decay) p
/// f32 arithmetic; the average is formed as ema + (1 - ema_decay) (p - ema), which has no bias from rounded factors.
struct AdamWStep {
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  double bias1 = 1, bias2 = 1;  ///< 1 - beta1^k, 1 - beta2^k for step k = 1, 2, ...
  double ema_decay = 0.9999;
  double grad_scale = 1;  ///< factor on g, for clipping and averaging
};
/// Runs the step on n elements. ema may be null; copy, if not null, receives the new p rounded to bf16. The arrays must
/// not alias.
void adamw_ema(const AdamWStep& step, const float* g, float* p, float* m, float* v, float* ema, BFloat16* copy,
               int64_t n);

/// average += share (x - average); this form of an EMA has no bias from rounded factors
void move_average(float share, const float* x, float* average, int64_t n);

/// out = a x + b noise, the forward process x_t of diffusion
void scale_add(float a, const float* x, float b, const float* noise, float* out, int64_t n);

}  // namespace ditrain::kernels
