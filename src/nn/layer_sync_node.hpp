// The node of LayerSync (include/ditrain/nn/layer_sync.hpp).
#pragma once
#include "ditrain/nn/layer_sync.hpp"
#include "ditrain/nn/layers.hpp"

namespace ditrain::nn {

/// Lies behind block `from`: adds to the gradient of its output in backward, where both outputs are there.
class LayerSyncNode final : public autograd::Node {
 public:
  /// cosines [B T]: written in backward.
  LayerSyncNode(autograd::Tape& tape, const LayerSync& sync, const TokenStream& stream,
                std::shared_ptr<std::vector<double>> cosines);
  int64_t samples() const override { return stream_.batch; }
  void forward_of(ops::Context&, const Samples&) override {}
  void backward(ops::Context& ctx, Gradients gradients) override;

  ActivationRef from_BTC, to_BTC;  ///< outputs of the blocks, which other nodes keep

 private:
  double weight_;
  TokenStream stream_;
  std::shared_ptr<std::vector<double>> cosines_;
};

}  // namespace ditrain::nn
