// The last layer and unpatchify (the reference's FinalLayer and DiT.unpatchify). With config.patch_overlap a token also
// predicts V pixels of its neighbours, and predictions of a pixel are added with weights that fade towards the rim of a
// patch. So an error of one token's patch fades out over 2 V + 1 pixels instead of ending in an edge, and the loss of a
// border pixel trains both tokens. The weights only scale rows of `linear`: training can undo them.
#pragma once
#include "ditrain/nn/modulations.hpp"
#include "ditrain/nn/norm.hpp"
#include "ditrain/ops/embedding.hpp"

namespace ditrain::nn {

struct FinalLayerWeights {
  NormWeights norm;      ///< final_layer.norm_final, as LightningDiT calls it
  LinearWeights linear;  ///< final_layer.linear [K K O, C], K = config.patch_side()
  LinearWeights adaLN;   ///< final_layer.adaLN_modulation.1 [2C, C]
  std::vector<Parameter*> in_arena() const { return norm.with({adaLN.w, adaLN.b, linear.w, linear.b}); }
};
FinalLayerWeights declare_final_layer(const Declarations& model, const ModelConfig& config);

/// Math:     shift, scale = adaLN_modulation(c).chunk(2), by an AdalnModulation;
///           out = unpatchify(linear(modulate(norm(x), shift, scale)))
class FinalLayer final : public autograd::Node {
 public:
  FinalLayer(autograd::Tape& tape, const ModelConfig& config, const FinalLayerWeights& weights,
             const TokenStream& stream, ActivationRef modulation);
  void forward(ops::Context& ctx) override;
  /// Starts the gradients of the residual stream and of the conditioning.
  void backward(ops::Context& ctx, Gradients gradients) override;

  ActivationRef x_BTC;  ///< input, written by the last block
  ActivationRef out;    ///< [B, O, H, W]
  ActivationRef dout;   ///< its gradient, written by the caller before backward

 private:
  ops::Chunk shift() const { return {modulation_->tensor, 0}; }
  ops::Chunk scale() const { return {modulation_->tensor, 1}; }
  ops::LinearInput normalised() const;

  ops::Patches patches_;
  FinalLayerWeights weights_;
  TokenStream stream_;
  ActivationRef modulation_;
  ModulatedNorm norm_;
  ActivationRef dmod_, tokens_, dtokens_, dh_BTC_;
};

}  // namespace ditrain::nn
