// The input of a network's first layer: the channels of the noisy image, followed by those of the condition's image.
#pragma once
#include "ditrain/nn/declarations.hpp"

namespace ditrain::nn {

class ImageInput {
 public:
  ImageInput(autograd::Tape& tape, autograd::Node& node, const ModelConfig& config, const TokenStream& stream);

  /// Joins both images; call it in forward. Returns `images()`.
  const Tensor& join(ops::Context& ctx) const;
  /// The result of the last join(), [B, in + condition channels, H, W].
  const Tensor& images() const { return (given_ != nullptr ? given_ : noisy)->tensor; }
  const Shape& shape() const { return (given_ != nullptr ? given_ : noisy)->shape; }

  ActivationRef noisy;  ///< [B, in, H, W], written by the caller of the pass

 private:
  TokenStream stream_;
  ActivationRef given_;  // of both; null: no condition channels
};

}  // namespace ditrain::nn
