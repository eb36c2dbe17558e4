// A DiT block with adaLN-Zero conditioning as two fused half-layers (the reference's DiTBlock.forward, line by line):
//   shift_msa, ..., gate_mlp = adaLN_modulation(c).chunk(6)              AdalnModulation, all before the first block
//   x = x + gate_msa attn(modulate(norm1(x), shift_msa, scale_msa))      AttentionHalf
//   x = x + gate_mlp mlp(modulate(norm2(x), shift_mlp, scale_mlp))       MlpHalf
//
// Stored for backward: x (and by AdalnModulation the six chunks) always; mean, rstd, qkv, attention output,
// log-sum-exp, proj output, fc1 output, fc2 output unless Recompute::kBlock; the normalised and modulated inputs h1 and
// h2, the GELU and the x between the halves in Recompute::kNone only. Other activations are recomputed by the same
// operations, hence bit-identical. Normalisation, GELU, gate and residual are fused into the neighbouring GEMMs. Ranks
// that share a replica (tensor_parallel.hpp) have their own heads H and columns F. Queries and keys may be normalised
// before the attention (as in LightningDiT and timm) and rotated by their position (RoPE); nothing is stored for that.
// Variants of norms: nn/norm.hpp.
#pragma once
#include <functional>

#include "ditrain/nn/modulations.hpp"
#include "ditrain/nn/norm.hpp"
#include "ditrain/ops/attention.hpp"
#include "ditrain/ops/elementwise.hpp"

namespace ditrain::nn {

/// attn.q_norm or attn.k_norm, [C / H]: the same for all heads.
struct HeadNormWeights {
  Parameter* w = nullptr;  ///< null: no normalisation
  Parameter* b = nullptr;  ///< null: RMSNorm
};
struct AttentionWeights {
  NormWeights input_norm;   ///< norm1
  LinearWeights qkv, proj;  ///< attn.qkv [3C, C], attn.proj [C, C]
  HeadNormWeights q_norm, k_norm;
  std::vector<Parameter*> in_arena() const;
  ops::HeadNorm norm() const;
  ops::HeadNorm norm_gradients() const;
};
struct MlpWeights {
  NormWeights input_norm;  ///< norm2
  LinearWeights fc1, fc2;  ///< mlp.fc1 [F, C], mlp.fc2 [C, F]; SwiGLU: mlp.w12 [2F, C], mlp.w3 [C, F]
  std::vector<Parameter*> in_arena() const { return input_norm.with({fc1.w, fc1.b, fc2.w, fc2.b}); }
};
struct BlockWeights {
  AttentionWeights attention;
  MlpWeights mlp;
  LinearWeights adaLN;  ///< adaLN_modulation.1 [6C, C]; its gradients become final with those of the attention half
  std::vector<Parameter*> in_arena_attention() const;
  std::vector<Parameter*> in_arena() const;  ///< parameters of both halves
};

/// The modules of the reference's DiTBlock, in its order.
BlockWeights declare_block(const Declarations& block, const ModelConfig& config);
AttentionWeights declare_attention(const Declarations& block, const ModelConfig& config);
MlpWeights declare_mlp(const Declarations& block, const ModelConfig& config);

/// The setting with which the model has a tensor of this name or, with `extra`, does not have it; "" if no setting
/// decides.
std::string advice_on_tensor(const std::string& name, bool extra);
std::string advice_on_attention(const std::string& name, bool extra);  ///< its part in the attention half

/// The shape of a tensor of the public state dict in some file; null if the file has none of that name.
using ShapeInFile = std::function<const std::vector<int64_t>*(const std::string& name)>;
/// Finds the variant of the blocks in a file whose width is in `config`, and sets it, and mlp_ratio where it depends on
/// the variant. Rotary embedding has no tensors and cannot be found. Returns the head width if the tensors show it,
/// else 0.
int64_t recognise_variant(const ShapeInFile& shape_of, ModelConfig& config);
int64_t recognise_attention(const ShapeInFile& shape_of, ModelConfig& config);  ///< its part in the attention half
void recognise_mlp(const ShapeInFile& shape_of, ModelConfig& config);

/// Multiply-adds of q k^T and of the product with v, for one block and one sample.
double attention_macs(const ModelConfig& config, int64_t tokens);

/// The attention half. It also computes the gradients of the block's adaLN modulation, which are final after its
/// backward.
class AttentionHalf final : public autograd::Node {
 public:
  AttentionHalf(autograd::Tape& tape, const ModelConfig& config, int64_t index, const BlockWeights& weights,
                const TokenStream& stream, ActivationRef modulation);
  int64_t samples() const override { return stream_.batch; }
  void forward_of(ops::Context& ctx, const Samples& s) override { compute(ctx, s); }
  void backward(ops::Context& ctx, Gradients gradients) override;

  /// x + attn(...) of some samples, into x_mid.
  void compute(ops::Context& ctx, const Samples& s) const;
  /// x between the halves, x + gate_msa proj, into x_mid.
  void compute_x_mid(ops::Context& ctx, const Samples& s) const;
  ops::Chunk modulation(Modulation which, const Samples& s) const { return {of(modulation_, s), which}; }
  ops::Chunk dmodulation(Modulation which, const Samples& s) const { return {of(dmod_, s), which}; }

  ActivationRef x_BTC;      ///< input of the block, written by the node before
  ActivationRef x_mid_BTC;  ///< x between the halves

 private:
  ops::LinearInput qkv_input(const Samples& s) const;  // modulate(norm1(x)): kept, or made while packing
  ops::Rotation rotation(const Samples& s) const;

  int64_t num_heads_;
  ops::Rotation rotation_;
  AttentionWeights weights_;
  LinearWeights adaLN_;
  TokenStream stream_;
  ActivationRef modulation_;
  // Sums the parts of the gradients of the norm, of samples, heads and ranks.
  void finish_norm_gradients(ops::Context& ctx, Gradients gradients) const;

  ModulatedNorm norm_;
  ActivationRef qkv_, attn_, lse_, proj_;
  ActivationRef dmod_, dh_BTC_, dproj_, dattn_, dqkv_, dnorm_BH_, dnorm_;
};

class MlpHalf final : public autograd::Node {
 public:
  MlpHalf(autograd::Tape& tape, const ModelConfig& config, int64_t index, const MlpWeights& weights,
          const TokenStream& stream, AttentionHalf& first_half);
  void set_output(ActivationRef x_BTC) { x_out_BTC_ = std::move(x_BTC); }
  int64_t samples() const override { return stream_.batch; }
  void forward_of(ops::Context& ctx, const Samples& s) override;
  /// In Recompute::kBlock it also recomputes the attention half, of which only the input is stored.
  void recompute(ops::Context& ctx) override;
  void backward(ops::Context& ctx, Gradients gradients) override;

 private:
  ops::LinearInput fc1_input(const Samples& s) const;  // modulate(norm2(x_mid)): kept, or made while packing
  // The MLP on x_mid.
  void compute(ops::Context& ctx, const Samples& s, const ops::LinearOutput& after_fc2) const;

  Mlp kind_;
  MlpWeights weights_;
  TokenStream stream_;
  AttentionHalf& first_half_;
  ModulatedNorm norm_;
  ActivationRef fc1_, activation_BTF_, fc2_, x_out_BTC_;
  ActivationRef dh_BTC_, dfc2_, dfc1_BTF_;
};

}  // namespace ditrain::nn
