// The last layer and unpatchify (the reference's FinalLayer and DiT.unpatchify). With config.patch_overlap a token
// predicts V pixels of its neighbours too, and predictions of a pixel are added up with weights that fade towards the
// rim. What is wrong with one token's patch (tokens have no other way to agree on a border than attention) ends in
// 2 V + 1 steps instead of an edge, and the loss of a border pixel teaches both tokens. The weights only set the scale
// of rows of `linear`: where training starts from, not a smoothing that it could not undo.
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
