// What the half-layers of a DiT share: weights of a linear layer and the tensors that pass from node to node.
// Legend of shapes: B batch, T tokens, C width, H heads, F MLP width, P patch, O output channels.
#pragma once
#include <algorithm>
#include <vector>

#include "ditrain/autograd/tape.hpp"
#include "ditrain/nn/dit_config.hpp"
#include "ditrain/nn/tensor_parallel.hpp"
#include "ditrain/ops/linear.hpp"

namespace ditrain::nn {

using autograd::ActivationRef;
using autograd::Gradients;
using autograd::KeepPolicy;
using autograd::Parameter;

/// What the blocks compute again in backward rather than keep; the bits of the results are the same.
///   kNone       nothing                                            about 18 B T C values kept a block
///   kSelective  what one pass over memory computes: normalised inputs, GELU, x between halves      11
///   kBlock      all but the block's input and modulation: its forward runs again, 1/3 more work     1
enum class Recompute { kNone, kSelective, kBlock };

std::vector<std::string> recompute_names();  ///< "none", "selective", "block": least to most
/// Errors:   InputError for another name
Recompute recompute_named(const std::string& name);

/// How a layer of few rows leaves its weight gradient dy^T x to whoever has the rows of other ranks, too: as the rows
/// of dy and x themselves, in the place of the gradient. Row s there is [dy_s, x_s] of sample s of the global batch.
struct FactorRows {
  int64_t of_batch = 0;                   ///< samples of the global batch
  int64_t first = 0;                      ///< number in it of the first sample that the pass has
  std::vector<const Parameter*> weights;  ///< of the layers that do so
  static int64_t width(const Parameter& w) { return w.shape[0] + w.shape[1]; }
  bool are_left_by(const Parameter& w) const { return std::find(weights.begin(), weights.end(), &w) != weights.end(); }
  Tensor place_in(const Parameter& w) const { return w.grad.slice(0, {of_batch, width(w)}); }
};

struct TokenStream;

/// Weight [N, K] and bias [N] of a linear layer.
struct LinearWeights {
  Parameter* w = nullptr;
  Parameter* b = nullptr;
  DType products = DType::kF32;  ///< kBF16: forward and data gradient read the weight's bf16 copy
  const Tensor& weight() const { return products == DType::kBF16 ? w->value_bf16 : w->value; }
  void forward(ops::Context& ctx, const ops::LinearInput& x, const Tensor& y,
               const ops::LinearOutput& output = {}) const;
  void backward_weight(ops::Context& ctx, const ops::LinearInput& x, const Tensor& dy, Gradients gradients) const;
  /// The same, or what stream.factors says. x and dy have a row for each sample.
  void backward_weight_of_samples(ops::Context& ctx, const TokenStream& stream, const Tensor& x, const Tensor& dy,
                                  Gradients gradients) const;
  void backward_data(ops::Context& ctx, const Tensor& dy, const Tensor& dx, const ops::LinearOutput& output = {}) const;
  void add_backward_data(ops::Context& ctx, const Tensor& dy, const Tensor& dx) const;  ///< dx is added to

  /// forward() of a layer cut by inputs: x is this rank's, y and `output` (plain or a gate) follow from the sum.
  void forward_summed(ops::Context& ctx, const TokenStream& stream, const Tensor& x, const Tensor& y,
                      const ops::LinearOutput& output) const;
  /// backward_data() of a layer cut by outputs: dy is this rank's, dx the sum.
  void backward_data_summed(ops::Context& ctx, const TokenStream& stream, const Tensor& dy, const Tensor& dx) const;
};

/// Samples [begin, end) of a batch, the first dimension of what they are taken of.
using Samples = parallel::Range;
inline Tensor of(const ActivationRef& a, const Samples& s) { return a->tensor.rows(s.begin, s.end); }

/// Tensors that every block reads or passes on.
struct TokenStream {
  int64_t batch = 0;
  DType activations = DType::kF32;                 ///< of what lies between products; the residual stream itself is f32
  KeepPolicy keep_cheap = KeepPolicy::kRecompute;  ///< of what one pass over memory computes again
  KeepPolicy keep_costly = KeepPolicy::kKeep;      ///< of what takes products or attention
  ActivationRef cond_BC;                           ///< silu(t_emb + y_emb), input of every adaLN
  ActivationRef dcond_BC;  ///< its gradient: overwritten by the final layer, added to by every block
  ActivationRef dx_BTC;    ///< gradient of the residual stream, turned from output to input by each half-layer
  const FactorRows* factors = nullptr;  ///< of adaLN layers; null: gradients
  TensorParallel tensor;
  ActivationRef partial_BTC;  ///< f32 addends of a sum over ranks whose result is bf16; else none
  /// Of the gradient of a half-layer's normalised input, which ranks sum in f32.
  DType input_gradient() const { return tensor.alone() ? activations : DType::kF32; }
};

/// Which six columns of adaLN's output are what.
enum Modulation : int64_t { kShiftMsa, kScaleMsa, kGateMsa, kShiftMlp, kScaleMlp, kGateMlp, kNumModulations };

}  // namespace ditrain::nn
