// Timestep and label embedders (the reference's TimestepEmbedder, LabelEmbedder and `c = t + y`), with the SiLU that
// opens every adaLN_modulation taken once for all blocks.
#pragma once
#include "ditrain/nn/declarations.hpp"

namespace ditrain::nn {

struct ConditioningWeights {
  LinearWeights mlp0, mlp2;          ///< t_embedder.mlp.0 [C, 256], t_embedder.mlp.2 [C, C]
  Parameter* label_table = nullptr;  ///< y_embedder.embedding_table.weight [classes + 1, C]; null: no labels
  std::vector<Parameter*> in_arena() const;
};
ConditioningWeights declare_conditioning(const Declarations& model, const ModelConfig& config);

inline constexpr int64_t kTimestepFrequencies = 256;

/// Math:     cond = silu(mlp2 silu(mlp0 timestep_embedding(t)) + label_table[y])
class Conditioning final : public autograd::Node {
 public:
  Conditioning(autograd::Tape& tape, const ModelConfig& config, const ConditioningWeights& weights,
               const TokenStream& stream);
  void forward(ops::Context& ctx) override;
  void backward(ops::Context& ctx, Gradients gradients) override;

 private:
  std::vector<int64_t> labels() const;

  ConditioningWeights weights_;
  TokenStream stream_;
  ActivationRef waves_, hidden_, hidden_silu_, c_BC_, label_BC_, dc_BC_, dhidden_;
};

}  // namespace ditrain::nn
