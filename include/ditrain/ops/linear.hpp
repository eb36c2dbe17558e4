// Linear layers and what is fused with them. Legend: M rows (batch x tokens), K inputs, N outputs; w is [N, K] as in
// the public state dict. Tensors are f32 or bf16; if one operand of a product is bf16, the other is rounded to bf16
// too, and the result may be either; that of f32 operands is f32, as sums are. Shapes or types that do not fit are a
// ShapeError that names the op.
#pragma once
#include <optional>

#include "ditrain/ops/context.hpp"
#include "ditrain/ops/elementwise.hpp"

namespace ditrain::ops {

/// The input of a linear layer: x itself, or modulate(LayerNorm(x)) or patches of images, computed while the GEMM packs
/// its operand.
struct LinearInput {
  LinearInput(Tensor plain) : x(std::move(plain)) {}  // NOLINT: a tensor is an input
  LinearInput(Tensor raw, NormTerms terms) : x(std::move(raw)), norm(std::move(terms)) {}
  /// Token (b, gy, gx) has the pixels images[b, c, gy P + i, gx P + j] as its K = C P P values (c, i, j), in the order
  /// of a convolution weight [N, C, P, P]; P = `patch` divides H and W.
  static LinearInput patches(Tensor images, int64_t patch) {
    LinearInput input(std::move(images));
    input.patch = patch;
    return input;
  }
  Tensor x;                       ///< [..., K]; normalised: [B, T, K] f32; of patches: images [B, C, H, W] f32
  std::optional<NormTerms> norm;  ///< from layer_norm_statistics
  int64_t patch = 0;              ///< 0: no patches
};

/// What happens to the result y of a product before it leaves the cache.
struct LinearOutput {
  enum class Kind { kPlain, kGelu, kGeluBackward, kSwiglu, kSwigluBackward, kGateResidual };
  Kind kind = Kind::kPlain;
  Tensor in, out;  ///< shape of y (a SwiGLU result: half as wide); f32 for a gate, else y's type
  Chunk gate;      ///< f32
};
LinearOutput then_gelu(const Tensor& gelu);  ///< gelu = tanh GELU of y
/// y becomes y gelu'(x); gelu, if defined, receives gelu(x)
LinearOutput times_gelu_slope(const Tensor& x, const Tensor& gelu);
/// y [..., 2H] = u | v;  swiglu [..., H] = silu(u) v
LinearOutput then_swiglu(const Tensor& swiglu);
/// Converts y, the gradient by silu(u) v, to the gradient by u | v; swiglu, if defined, receives silu(u) v.
LinearOutput times_swiglu_slope(const Tensor& u_v, const Tensor& swiglu);
/// out = x + gate y, the gate of a sample for all its tokens; x and out f32
LinearOutput then_gate_residual(const Tensor& x, const Chunk& gate, const Tensor& out);

/// Math:     y = x w^T + b
/// Shapes:   x [..., K], w [N, K], b [N] or undefined, y [..., N]; w may have more dimensions, K is what follows N
void linear_forward(Context& ctx, const LinearInput& x, const Tensor& w, const Tensor& b, const Tensor& y,
                    const LinearOutput& output = {});

/// Math:     dx = dy w
/// Shapes:   as above; before SwiGLU (times_swiglu_slope) dx is [..., 2K]
/// Grads:    dx is overwritten, or added to if `accumulate` (f32 only)
void linear_backward_data(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx, bool accumulate = false,
                          const LinearOutput& output = {});

/// Math:     dw = dy^T x,  db = sum of dy over rows
/// Grads:    f32, both added to, or overwritten if not `accumulate`, which is the same as adding to zeros; db may be
///           undefined
/// Types:    products are bf16 if x, dy or `arithmetic` is
void linear_backward_weight(Context& ctx, const LinearInput& x, const Tensor& dy, const Tensor& dw, const Tensor& db,
                            bool accumulate = true, DType arithmetic = DType::kF32);

}  // namespace ditrain::ops
