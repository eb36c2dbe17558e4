// Shifts, scales and gates of all blocks and of the final layer: the reference's `self.adaLN_modulation(c)` of every
// DiTBlock and of FinalLayer. All are linear layers on the same silu(c), too small to fill a machine one by one, so
// they are one batched product before the first block; `.chunk(6)` and `.chunk(2)` are ops::Chunk over a row of the
// result. Their gradients are taken layer by layer, by the attention halves and the final layer, so that each leaves
// early: the weights count as parameters of those nodes.
#pragma once
#include <optional>

#include "ditrain/nn/declarations.hpp"

namespace ditrain::nn {

/// adaLN_modulation.1 [chunks C, C] of a module: the linear layer after the SiLU.
LinearWeights declare_modulation(const Declarations& module, const DitConfig& config, int64_t chunks,
                                 const std::string& diffusers);

class Modulations final : public autograd::Node {
 public:
  /// final_layer: null for blocks alone.
  Modulations(autograd::Tape& tape, const DitConfig& config, std::vector<LinearWeights> blocks,
              const LinearWeights* final_layer, const TokenStream& stream);
  void forward(ops::Context& ctx) override;
  void backward(ops::Context&, Gradients) override {}

  Tensor of_block(int64_t index) const;                               ///< [B, 6C]
  Tensor of_final_layer() const { return final_layer_mod_->tensor; }  ///< [B, 2C]

 private:
  std::vector<LinearWeights> blocks_;
  std::optional<LinearWeights> final_layer_;
  TokenStream stream_;
  ActivationRef block_mods_, final_layer_mod_;  // the first [depth B, 6C]
};

}  // namespace ditrain::nn
