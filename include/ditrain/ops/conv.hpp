// Convolutions of channels-last images as products whose operand is gathered while it is packed (kernels::Window).
// Inference only, without a backward pass. Legend: B images, H x W pixels, C channels in, N channels out.
//
//   const Conv2d three = {.kernel_h = 3, .kernel_w = 3, .pad_top = 1, .pad_left = 1, .pad_bottom = 1, .pad_right = 1};
//   Tensor y(conv2d_shape(x.shape(), w.shape(), three));
//   conv2d(ctx, x, w, bias, three, y, {.kind = ConvOutput::Kind::kSilu});
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

struct Conv2d {
  int64_t kernel_h = 1, kernel_w = 1;
  int64_t stride_h = 1, stride_w = 1;
  int64_t pad_top = 0, pad_left = 0, pad_bottom = 0, pad_right = 0;  ///< zeros
  bool doubled = false;  ///< x is first upsampled to 2 H x 2 W (nearest neighbour)

  /// k x k with the padding that keeps the size (k odd).
  static Conv2d same(int64_t k, bool doubled = false) { return {k, k, 1, 1, k / 2, k / 2, k / 2, k / 2, doubled}; }
};

/// What happens to an element t = sum + bias before it is rounded to y's type.
struct ConvOutput {
  enum class Kind { kPlain, kRelu, kSilu, kResidual };
  Kind kind = Kind::kPlain;
  Tensor residual = {};  ///< kResidual: y = t + residual; of y's shape and type, not y itself
  Tensor moments = {};   ///< f32 moments_shape(y), written: statistics of y for group_norm
  /// If y is a part of an image: pixels per unit of that image's moments; `moments` are those of the part, which must
  /// begin at a unit. 0: y is a whole image.
  int64_t moment_rows = 0;
};

/// Weights [kernel_h, kernel_w, C, N], f32 or bf16: a plain tensor, which every call packs, or packed once
/// (packed_weights), as networks store them.
struct ConvWeights {
  ConvWeights() = default;
  ConvWeights(const Tensor& w) : shape(w.shape()), type(w.dtype()), values(w) {}  // NOLINT: a tensor is weights as well

  Shape shape;
  DType type = DType::kF32;
  Tensor values;
  bool packed = false;  ///< values were packed by kernels::pack_b, for the instruction set in use
};
ConvWeights packed_weights(const Tensor& w);
size_t packed_weights_bytes(const Shape& w, DType type);

/// [B, OH, OW, N]. Errors: ShapeError if an image is smaller than the kernel
Shape conv2d_shape(const Shape& x, const Shape& w, const Conv2d& conv);

/// Math:     y[b,p,q,n] = f(bias[n] + sum_{i,j,c} x[b, p stride_h - pad_top + i, q stride_w - pad_left + j, c]
///           w[i,j,c,n]), the sum over (i, j, c) in this order, in chunks of kernels::kSumChunk
/// Shapes:   x [B,H,W,C]; w [kernel_h,kernel_w,C,N]; bias [N] or undefined; y conv2d_shape(...), all without gaps
/// Types:    x, w, y f32 or bf16, y f32 if x and w are; bias f32; sums f32; bf16 products if x or w is bf16
/// Numerics: the bits do not depend on the number of workers or clusters
/// Memory:   scratch of the context only; y aliases nothing
/// Errors:   ShapeError "[conv2d] ..."
void conv2d(Context& ctx, const Tensor& x, const ConvWeights& w, const Tensor& bias, const Conv2d& conv,
            const Tensor& y, const ConvOutput& output = {});

/// Channels [begin, begin + count) of every pixel of images [B,H,W,pixel channels], so that branches of a network write
/// their output directly into the concatenated image.
struct ChannelView {
  Tensor images;
  int64_t begin = 0, count = 0;
  Shape shape() const { return {images.dim(0), images.dim(1), images.dim(2), count}; }
};

/// The same on channel views; x and y may be in the same images if their channels do not overlap.
/// Errors:   ShapeError; LogicFault for channels that the images do not have, for kResidual and for moments
void conv2d(Context& ctx, const ChannelView& x, const ConvWeights& w, const Tensor& bias, const Conv2d& conv,
            const ChannelView& y, ConvOutput::Kind kind);

/// Converts weights from torch's layout [N,C,kernel_h,kernel_w] to [kernel_h,kernel_w,C,N]; `to` may be bf16.
void to_conv_layout(const std::vector<float>& from, int64_t N, const Tensor& to);

}  // namespace ditrain::ops
