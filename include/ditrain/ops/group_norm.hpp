// Group normalisation of channels-last images [B, H, W, C]. What it has to know of x, the moments of its columns, comes
// from the convolution that made x (ConvOutput::moments), whose rows are still in the caches then: normalisation and
// SiLU take one pass over memory. Inference only, without a backward pass.
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// Pixels whose moments are summed up in one chain: at least 32, and more where an image would have over 512 such
/// units. It depends on the size of the image alone, hence so do the bits.
int64_t moment_rows(int64_t pixels);
/// f32 [B, units, 3, C] for images [B, H, W, C]; see kernels::Moments.
Shape moments_shape(const Shape& x);
/// The moments of images that no convolution has made; bit-identical to those from one.
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
/// Terms:    of images [B,H,W,C] `x` with these moments: f32 [B, 2, C], mean and scale of each channel
void group_norm_terms(Context& ctx, const Shape& x, const Tensor& moments, const Tensor& weight, const GroupNorm& norm,
                      const Tensor& terms);
/// Rows:     x, y [1,h,W,C], of the image whose terms [1, 2, C] are given
void group_norm_rows(Context& ctx, const Tensor& x, const Tensor& terms, const Tensor& bias, const GroupNorm& norm,
                     const Tensor& y);

}  // namespace ditrain::ops
