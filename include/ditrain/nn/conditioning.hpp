// Timestep and label embedders (the reference's TimestepEmbedder, LabelEmbedder and `c = t + y`). The SiLU at the
// beginning of every adaLN_modulation is computed here once for all blocks.
#pragma once
#include "ditrain/nn/declarations.hpp"

namespace ditrain::nn {

struct ConditioningWeights {
  LinearWeights mlp0, mlp2;  ///< t_embedder.mlp.0 [C, 256], t_embedder.mlp.2 [C, C]
  struct Number {
    size_t number;             ///< of kMetadata
    LinearWeights mlp0, mlp2;  ///< m_embedder.NAME.mlp.0, .2, as those of the time
  };
  std::vector<Number> numbers = {};
  Parameter* label_table = nullptr;  ///< y_embedder.embedding_table.weight [classes + 1, C]; null: no labels
  std::vector<Parameter*> in_arena() const;
};
ConditioningWeights declare_conditioning(const Declarations& model, const ModelConfig& config);

inline constexpr int64_t kTimestepFrequencies = 256;

/// A scaled number of kMetadata is multiplied by this before its embedding, so that its sinusoids cover the range of
/// timesteps.
inline constexpr double kNumberScale = 1000;

/// Math:     cond = silu(embed(t) + label_table[y] + sum_j embed_j(1000 scaled(number j)));
///           embed = mlp2 silu(mlp0 timestep_embedding(.)); a number that is not known (NaN) adds nothing
class Conditioning final : public autograd::Node {
 public:
  Conditioning(autograd::Tape& tape, const ModelConfig& config, const ConditioningWeights& weights,
               const TokenStream& stream);
  void forward(ops::Context& ctx) override;
  void backward(ops::Context& ctx, Gradients gradients) override;

 private:
  // A number per sample, embedded.
  struct Embedder {
    const LinearWeights &mlp0, &mlp2;
    ActivationRef waves = {}, hidden = {}, hidden_silu = {};
  };
  Embedder declare(autograd::Tape& tape, const std::string& prefix, const LinearWeights& mlp0,
                   const LinearWeights& mlp2);
  void embed(ops::Context& ctx, const Embedder& by, const std::vector<double>& values, const Tensor& out) const;
  void embed_backward(ops::Context& ctx, const Embedder& by, const Tensor& dout, Gradients gradients) const;
  std::vector<int64_t> labels() const;
  // One per sample; NaN: not known.
  std::vector<double> values_of(size_t number) const;

  ConditioningWeights weights_;
  TokenStream stream_;
  std::vector<Embedder> embedders_;  // of the time, then of the numbers
  ActivationRef c_BC_, label_BC_, dc_BC_, dhidden_;
};

}  // namespace ditrain::nn
