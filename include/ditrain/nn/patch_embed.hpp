// Patch embedding with the fixed positional table (the reference's PatchEmbed and `x + self.pos_embed`). Variants: two
// linear maps over a bottleneck (JiT's BottleneckPatchEmbed, arXiv 2511.13720, with its names: the first has no bias),
// and patches that overlap (config.patch_overlap; the way out is in nn/final_layer.hpp).
#pragma once
#include "ditrain/nn/image_input.hpp"
#include "ditrain/ops/embedding.hpp"

namespace ditrain::nn {

inline constexpr const char *kPatchesWeight = "x_embedder.proj.weight",
                            *kNarrowPatchesWeight = "x_embedder.proj1.weight",
                            *kWidenWeight = "x_embedder.proj2.weight";  // the latter two with a bottleneck

struct PatchEmbedWeights {
  Parameter* pos_embed = nullptr;  ///< [1, T, C], frozen; null with rotary embedding
  /// x_embedder.proj: w [C, in + condition channels, K, K], K = config.patch_side(); with a bottleneck of N
  /// x_embedder.proj1: w [N, in + condition channels, K, K], no bias
  LinearWeights proj;
  LinearWeights widen;  ///< x_embedder.proj2: w [C, N, 1, 1]; null: no bottleneck
  std::vector<Parameter*> in_arena() const;
};
PatchEmbedWeights declare_patch_embed(const Declarations& model, const ModelConfig& config);

/// Math:     x[b,t,:] = proj(patch t of image b and of its condition's) + pos_embed[t,:], the latter if there is one;
///           with a bottleneck widen(proj(patch)) + pos_embed
class PatchEmbed final : public autograd::Node {
 public:
  PatchEmbed(autograd::Tape& tape, const ModelConfig& config, const PatchEmbedWeights& weights,
             const TokenStream& stream);
  void set_output(ActivationRef x_BTC) { x_BTC_ = std::move(x_BTC); }
  void forward(ops::Context& ctx) override;
  void backward(ops::Context& ctx, Gradients gradients) override;

  const ActivationRef& image() const { return input_.noisy; }
  /// Gradient of the image (with condition channels, of both images), written by backward if `want_input_gradient` was
  /// called.
  ActivationRef dimage;
  void want_input_gradient(autograd::Tape& tape);

 private:
  ops::LinearInput gather(ops::Context& ctx, const Tensor& images) const;

  ops::Patches patches_;
  PatchEmbedWeights weights_;
  TokenStream stream_;
  ImageInput input_;
  ActivationRef rows_, drows_;              // [B, T, channels K K]; rows_: for patches that overlap
  ActivationRef narrow_BTN_, dnarrow_BTN_;  // for a bottleneck
  ActivationRef x_BTC_;
};

/// The reference's get_2d_sincos_pos_embed: [gh gw, width]; the first half of a row encodes the column of the token,
/// the second half its row; each half is sin(p w_k), then cos(p w_k), w_k = 10000^(-k / (width / 4)). f64, rounded
/// once.
std::vector<float> sincos_position_table(int64_t width, int64_t grid_height, int64_t grid_width);

}  // namespace ditrain::nn
