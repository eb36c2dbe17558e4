// Shifts, scales and gates of a block or of the final layer: the reference's `self.adaLN_modulation(c)`, a linear layer
// on silu(c); `.chunk(6)` and `.chunk(2)` are ops::Chunk over a row of the result. These GEMMs have one row per sample
// and the weights of a third of the model, so memory bandwidth limits them: each is a node of its own, and all run
// before the first block, where the whole team shares their columns. The attention halves and the final layer compute
// their gradients, so that each becomes final early; the weights count as parameters of those nodes.
#pragma once
#include "ditrain/nn/declarations.hpp"

namespace ditrain::nn {

/// adaLN_modulation.1 [chunks C, C] of a module: the linear layer after the SiLU.
LinearWeights declare_modulation(const Declarations& module, const ModelConfig& config, int64_t chunks,
                                 const std::string& diffusers);

class AdalnModulation final : public autograd::Node {
 public:
  /// module: its name, "blocks.0".
  AdalnModulation(autograd::Tape& tape, const std::string& module, const LinearWeights& weights,
                  const TokenStream& stream);
  void forward(ops::Context& ctx) override { weights_.forward(ctx, stream_.cond_BC->tensor, out_->tensor); }
  void backward(ops::Context&, Gradients) override {}

  const ActivationRef& out() const { return out_; }  ///< [B, chunks C]

 private:
  LinearWeights weights_;
  TokenStream stream_;
  ActivationRef out_;
};

}  // namespace ditrain::nn
