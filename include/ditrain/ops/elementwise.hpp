// Element-wise ops, norms and gates. Legend: B batch, T tokens, C width. Activations (h, y, dh of a norm or gate; x and
// y of GELU) are f32 or bf16; the residual stream, conditioning and statistics are f32.
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

inline constexpr float kLayerNormEps = 1e-6f;  // every LayerNorm of the reference DiT; LightningDiT's RMSNorm

/// LayerNorm, or RMSNorm, which has no mean (0 is written for it).
enum class NormKind { kLayer, kRms };

/// Column block `index` of a conditioning tensor [B, n C]: the shift, scale or gate of one place in a block.
struct Chunk {
  Tensor cond;        ///< [B, n C]
  int64_t index = 0;  ///< columns [index C, (index + 1) C)
};
/// Errors: ShapeError if chunk is not one of [B, n C]
void expect_chunk(const char* op, const Chunk& chunk, int64_t B, int64_t C);

/// The operands of modulate(LayerNorm(x)) besides x.
struct NormTerms {
  Tensor mean, rstd;  ///< [B, T]
  Chunk shift, scale;
};

void gelu_forward(Context& ctx, const Tensor& x, const Tensor& y);  ///< tanh GELU; y may be x
/// Grads: dx = dy gelu'(x), overwritten; dx may be dy or x
void gelu_backward(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dx);
void gelu_erf_forward(Context& ctx, const Tensor& x, const Tensor& y);  ///< exact GELU; y may be x
/// Grads: dx = dy gelu'(x), overwritten; dx may be dy or x
void gelu_erf_backward(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dx);
void silu_forward(Context& ctx, const Tensor& x, const Tensor& y);  ///< y may be x
void silu_backward(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dx);
void add(Context& ctx, const Tensor& x, const Tensor& y);      ///< y += x
void to_bf16(Context& ctx, const Tensor& x, const Tensor& y);  ///< y = x rounded to nearest even

/// Math:     y[b,t,:] = (x[b,t,:] - mean[b,t]) rstd[b,t] (1 + scale[b,:]) + shift[b,:]
/// Shapes:   x, y [B, T, C]; mean, rstd [B, T], written and kept for backward; shift, scale: chunks of [B, n C]
void layer_norm_modulate_forward(Context& ctx, const Tensor& x, const Chunk& shift, const Chunk& scale, const Tensor& y,
                                 const Tensor& mean, const Tensor& rstd, NormKind kind = NormKind::kLayer,
                                 float eps = kLayerNormEps);
/// Computes mean and rstd only, bit-identical to layer_norm_modulate_forward.
void layer_norm_statistics(Context& ctx, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                           NormKind kind = NormKind::kLayer, float eps = kLayerNormEps);
/// Grads:    dx is added to; dshift, dscale (chunks of a gradient [B, n C]) are overwritten
void layer_norm_modulate_backward(Context& ctx, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                                  const Chunk& scale, const Tensor& dy, const Tensor& dx, const Chunk& dshift,
                                  const Chunk& dscale, NormKind kind = NormKind::kLayer);

/// Joins a norm's own weight [C] with the modulation into [B, 2C], whose chunks the ops above take for shift and scale.
/// Math:     joined[b,:] = shift[b,:] | weight (1 + scale[b,:]) - 1
/// Numerics: joining adds an error of up to 2^-24 to 1 + joined: relative to 1, not to a small weight
void join_weight(Context& ctx, const Chunk& shift, const Chunk& scale, const Tensor& weight, const Tensor& joined);
/// Grads:    dscale, on input the gradient by the joined scale, becomes the gradient by scale. dweight [C] is
///           overwritten, or added to: the sum over samples, in order, of the input dscale times (1 + scale)
void split_weight_gradient(Context& ctx, const Chunk& scale, const Tensor& weight, const Chunk& dscale,
                           const Tensor& dweight, bool accumulate);

/// Converts weight and bias [C] of a LayerNorm without modulation into [B, 2C], whose chunks the ops above take for
/// shift and scale.
/// Math:     joined[b,:] = bias | weight - 1
/// Numerics: exact for weights in [0.5, 2]; else 1 + joined is off by up to 2^-24 more, relative to 1
void join_affine(Context& ctx, const Tensor& weight, const Tensor& bias, const Tensor& joined);
/// Grads:    dweight and dbias [C] are overwritten, or added to: sums over samples, in their order, of dscale and
///           dshift, the chunks of djoined [B, 2C]
void split_affine_gradient(Context& ctx, const Tensor& djoined, const Tensor& dweight, const Tensor& dbias,
                           bool accumulate);

/// Math:     y = x + gate h, the gate of a sample for all its tokens; y may be x
void gate_residual_forward(Context& ctx, const Tensor& x, const Chunk& gate, const Tensor& h, const Tensor& y);
/// Grads:    dh = gate dy and dgate = sum_t dy h, both overwritten; the gradient by x is dy itself
void gate_residual_backward(Context& ctx, const Tensor& dy, const Chunk& gate, const Tensor& h, const Tensor& dh,
                            const Chunk& dgate);

/// Sum of squares of all elements, in pieces of a fixed length added in order.
double sum_squares(Context& ctx, const Tensor& x);
/// Index of the first NaN or infinity, or -1.
int64_t find_non_finite(Context& ctx, const Tensor& x);
void zero(Context& ctx, const Tensor& x);

}  // namespace ditrain::ops
