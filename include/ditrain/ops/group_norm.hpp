// Group normalisation of channels-last images [B, H, W, C]. Its statistics, the moments of the columns of x, come from
// the convolution that made x (ConvOutput::moments), while its rows are still in the caches; so normalisation and SiLU
// take one pass over memory. Inference only, without a backward pass.
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// Pixels per unit, whose moments are summed in one chain: at least 32, and more if an image would have over 512 units.
/// It depends on the size of the image alone, so the bits do too.
int64_t moment_rows(int64_t pixels);
/// f32 [B, units, 3, C] for images [B, H, W, C]; see kernels::Moments.
Shape moments_shape(const Shape& x);
/// Computes the moments of images that no convolution made; bit-identical to those of ConvOutput::moments.
void image_moments(Context& ctx, const Tensor& x, const Tensor& moments);

struct GroupNorm {
  int64_t groups = 32;
  double eps = 1e-6;  ///< of the VAE
  bool silu = false;
};

/// Math:     y = f((x - mean) / sqrt(var + eps) weight + bias), mean and biased variance of each image and group of
///           C / groups neighbouring channels; f is SiLU or nothing
/// Shapes:   x, y [B,H,W,C]; moments moments_shape(x); weight, bias [C]
/// Types:    x, y both f32 or both bf16; the others f32
/// Numerics: moments of units are put together in f64, in their order; the bits do not depend on the workers
/// Memory:   y may be x
/// Errors:   ShapeError "[group_norm] ..."
void group_norm(Context& ctx, const Tensor& x, const Tensor& moments, const Tensor& weight, const Tensor& bias,
                const GroupNorm& norm, const Tensor& y);

/// group_norm in two parts, for images that are normalised a few rows at a time, bit-identical.
/// The first part: computes `terms`, f32 [B, 2, C], the mean and scale of each channel of images of shape `x`
/// [B,H,W,C].
void group_norm_terms(Context& ctx, const Shape& x, const Tensor& moments, const Tensor& weight, const GroupNorm& norm,
                      const Tensor& terms);
/// The second part: normalises rows x [1,h,W,C] into y, for the image with the given terms [1, 2, C].
void group_norm_rows(Context& ctx, const Tensor& x, const Tensor& terms, const Tensor& bias, const GroupNorm& norm,
                     const Tensor& y);

}  // namespace ditrain::ops
