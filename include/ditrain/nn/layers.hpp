// What the half-layers of a DiT share: weights of a linear layer and the tensors that pass from node to node.
// Legend of shapes: B batch, T tokens, C width, H heads, F MLP width, P patch, O output channels.
#pragma once
#include <memory>
#include <vector>

#include "ditrain/autograd/tape.hpp"
#include "ditrain/base/condition.hpp"
#include "ditrain/nn/model_config.hpp"
#include "ditrain/nn/recompute.hpp"
#include "ditrain/nn/tensor_parallel.hpp"
#include "ditrain/ops/linear.hpp"

namespace ditrain::nn {

using autograd::ActivationRef;
using autograd::Gradients;
using autograd::KeepPolicy;
using autograd::Parameter;

/// Takes over the weight gradients of layers that have one row of x and dy per sample, because these rows are fewer
/// numbers than the gradient dy^T x. The pass asks once per layer that declares offers_gradient.
class WeightGradientSink {
 public:
  virtual ~WeightGradientSink() = default;
  /// Reads x [B, K] and dy [B, N] and returns true if it takes over the gradients of w [N, K] and of its bias; the pass
  /// then writes nothing to their memory.
  /// Threads:  an op: work goes through ctx. Several workers may call it at once, each with its own context, so the
  ///           answer must depend on w alone
  virtual bool take(ops::Context& ctx, const Parameter& w, const Tensor& x, const Tensor& dy,
                    Gradients gradients) const = 0;
};

struct TokenStream;

/// Weight [N, K] and bias [N] of a linear layer.
struct LinearWeights {
  Parameter* w = nullptr;
  Parameter* b = nullptr;        ///< null: none
  DType products = DType::kF32;  ///< kBF16: forward and data gradient read the weight's bf16 copy
  const Tensor& weight() const { return products == DType::kBF16 ? w->value_bf16 : w->value; }
  Tensor bias() const { return b != nullptr ? b->value : Tensor(); }
  void forward(ops::Context& ctx, const ops::LinearInput& x, const Tensor& y,
               const ops::LinearOutput& output = {}) const;
  void backward_weight(ops::Context& ctx, const ops::LinearInput& x, const Tensor& dy, Gradients gradients) const;
  /// The same, unless stream.sink takes the gradient over. x and dy have one row per sample.
  void backward_weight_of_samples(ops::Context& ctx, const TokenStream& stream, const Tensor& x, const Tensor& dy,
                                  Gradients gradients) const;
  void backward_data(ops::Context& ctx, const Tensor& dy, const Tensor& dx, const ops::LinearOutput& output = {}) const;
  void add_backward_data(ops::Context& ctx, const Tensor& dy, const Tensor& dx) const;  ///< dx is added to

  /// forward() of a layer split by inputs: x is this rank's part, y and `output` (plain or a gate) follow from the sum.
  void forward_summed(ops::Context& ctx, const TokenStream& stream, const Tensor& x, const Tensor& y,
                      const ops::LinearOutput& output) const;
  /// backward_data() of a layer split by outputs: dy is this rank's part, dx the sum.
  void backward_data_summed(ops::Context& ctx, const TokenStream& stream, const Tensor& dy, const Tensor& dx) const;
};

/// Samples [begin, end) of a batch, in the first dimension of a tensor.
using Samples = parallel::Range;
inline Tensor of(const ActivationRef& a, const Samples& s) { return a->tensor.rows(s.begin, s.end); }

/// Inputs of a pass beside the noisy pixels.
struct PassInputs {
  explicit PassInputs(int64_t batch) : t(size_t(batch)), conditions(size_t(batch)) {}
  std::vector<double> t;              ///< [B], as Process::model_time gives it
  std::vector<Condition> conditions;  ///< [B]; a dropped label is the null class; parts that the model lacks are unused
  /// Per route, [B, K]: the tokens of each sample that stay, as draw_remaining_tokens draws them. Initially the first K
  /// tokens.
  std::vector<std::vector<int64_t>> remaining_tokens = {};
};

/// Tensors that every block reads or passes on.
struct TokenStream {
  int64_t batch = 0;
  int64_t tokens = 0;  ///< T per sample; within a route, the tokens that stay
  int64_t route = -1;  ///< number of the route (nn/routing.hpp); -1: outside of routes
  std::shared_ptr<PassInputs> inputs;
  DType activations = DType::kF32;                 ///< type of stored activations; the residual stream itself is f32
  KeepPolicy keep_cheap = KeepPolicy::kRecompute;  ///< for tensors that one pass over memory recomputes
  KeepPolicy keep_costly = KeepPolicy::kKeep;      ///< for tensors that need GEMMs or attention
  ActivationRef cond_BC;                           ///< silu(t_emb + y_emb), input of every adaLN
  ActivationRef dcond_BC;  ///< its gradient: overwritten by the final layer, added to by every block
  ActivationRef dx_BTC;    ///< gradient of the residual stream, turned from output to input by each half-layer
  const WeightGradientSink* sink = nullptr;  ///< null: the pass computes all gradients
  TensorParallel tensor;
  ActivationRef partial_BTC;  ///< f32 addends of a sum over ranks whose result is bf16; else none
  /// Type of the gradient of a half-layer's normalised input; ranks sum it in f32.
  DType input_gradient() const { return tensor.alone() ? activations : DType::kF32; }
  /// The places in the image of these samples' tokens, [B, T]; null: all tokens, in order.
  const int64_t* places(const Samples& s) const {
    return route < 0 ? nullptr : inputs->remaining_tokens[size_t(route)].data() + s.begin * tokens;
  }
};

/// The meaning of the six chunks of adaLN's output.
enum Modulation : int64_t { kShiftMsa, kScaleMsa, kGateMsa, kShiftMlp, kScaleMlp, kGateMlp, kNumModulations };

}  // namespace ditrain::nn
