// The norms before attention, MLP and final layer, each joined with the adaLN modulation behind it:
//   model.norm: layer   LayerNorm without parameters (the reference)
//   model.norm: rms     RMSNorm with a weight, in the blocks and in the final layer, as LightningDiT has it
// A norm makes one pass over x for its statistics; the next GEMM applies norm and modulation while it packs x or, if
// nothing is recomputed, one more pass writes the result.
#pragma once
#include "ditrain/nn/declarations.hpp"
#include "ditrain/ops/elementwise.hpp"

namespace ditrain::nn {

struct NormWeights {
  Parameter* w = nullptr;  ///< [C]; null: none
  /// The node's parameters in the order of the arena: the norm's weight, then `others`.
  std::vector<Parameter*> with(std::vector<Parameter*> others) const;
};
NormWeights declare_norm(const Declarations& module, const std::string& name, const ModelConfig& config);

/// A norm as its node uses it. Shift and scale are chunks of the modulation of the same samples.
class ModulatedNorm {
 public:
  ModulatedNorm() = default;
  /// Declares the tensors that the node keeps for it: "mean" and "rstd" + suffix and, if `keeps_output`, the result,
  /// "h" + suffix.
  ModulatedNorm(autograd::Tape& tape, autograd::Node& node, const std::string& suffix, const ModelConfig& config,
                const NormWeights& weights, const TokenStream& stream, KeepPolicy statistics, bool keeps_output);
  bool keeps_output() const { return h_BTC_ != nullptr; }

  void forward(ops::Context& ctx, const Tensor& x, const ops::Chunk& shift, const ops::Chunk& scale,
               const Samples& s) const;
  /// The input of the layer behind the norm, after forward or backward of these samples.
  ops::LinearInput output(const Tensor& x, const ops::Chunk& shift, const ops::Chunk& scale, const Samples& s) const;
  /// dx is added to; dshift and dscale are overwritten, dscale for finish_gradients.
  void backward(ops::Context& ctx, const Tensor& x, const ops::Chunk& shift, const ops::Chunk& scale, const Tensor& dy,
                const Tensor& dx, const ops::Chunk& dshift, const ops::Chunk& dscale, const Samples& s) const;
  /// Call after backward of all samples: computes the gradient of the weight, and converts dscale to the gradient by
  /// the modulation.
  void finish_gradients(ops::Context& ctx, const ops::Chunk& scale, const ops::Chunk& dscale,
                        Gradients gradients) const;

 private:
  ops::NormTerms terms(const ops::Chunk& shift, const ops::Chunk& scale, const Samples& s) const;
  // Shift and scale as the ops take them: joined with the weight, if there is one.
  void join(ops::Context& ctx, const ops::Chunk& shift, const ops::Chunk& scale, const Samples& s) const;

  ops::NormKind kind_ = ops::NormKind::kLayer;
  NormWeights weights_;
  ActivationRef h_BTC_, mean_, rstd_, joined_;
};

}  // namespace ditrain::nn
