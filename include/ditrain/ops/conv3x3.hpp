// A 3 x 3 convolution of few channels that keeps the size of its images, with its gradients: U-ViT's last layer, whose
// channels are those of the image. Plain loops along rows: it is far below a thousandth of a model's work. Convolutions
// of networks that only run forward: ops/conv.hpp. Legend: B images, C channels in, N channels out, H x W pixels.
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// Math:     y[b,n,i,j] = bias[n] + sum_{c,p,q} w[n,c,p,q] x[b,c,i+p-1,j+q-1], zeros around the image
/// Shapes:   x [B, C, H, W]; w [N, C, 3, 3]; bias [N]; y [B, N, H, W]; f32
void conv3x3_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y);
/// Grads:    dx is overwritten
void conv3x3_backward_data(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx);
/// Grads:    dw and dbias are overwritten, or added to; their sums are f64, in the order of images, rows and columns
void conv3x3_backward_weight(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& dbias,
                             bool accumulate);

}  // namespace ditrain::ops
