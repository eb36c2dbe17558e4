// What network a set of weights belongs to, told by names that no other network of the field has.
#include <algorithm>
#include <array>

#include "ditrain/weights/weight_file.hpp"

namespace ditrain::weights {
namespace {

struct Signature {
  const char* network;
  std::array<const char*, 2> parts;  // of names, all of which have to be there; null: none
};

// More special ones first: most of them share names with those that follow.
constexpr Signature kSignatures[] = {
    {"an SD3 MMDiT", {"joint_blocks.0.x_block."}},
    {"an SD3 MMDiT, as diffusers writes it", {"transformer_blocks.0.attn.add_q_proj.", "time_text_embed."}},
    {"a FLUX transformer", {"double_blocks.0.img_attn."}},
    {"a FLUX transformer, as diffusers writes it", {"single_transformer_blocks.0."}},
    {"a PixArt transformer", {"scale_shift_table", "blocks.0.cross_attn."}},
    {"a PixArt transformer, as diffusers writes it", {"adaln_single."}},
    {"a HunyuanDiT", {"blocks.0.default_modulation."}},
    {"a LightningDiT (SwiGLU in its MLPs)", {"blocks.0.mlp.w12.", "adaLN_modulation."}},
    {"a U-ViT", {"in_blocks.0.attn.", "mid_block.attn."}},
    {"a whole Stable Diffusion checkpoint (UNet and VAE)",
     {"model.diffusion_model.input_blocks.0.", "first_stage_model."}},
    {"a UNet of latent diffusion", {"input_blocks.0.0.weight", "middle_block.0."}},
    {"a UNet of diffusers", {"time_embedding.linear_1.", "down_blocks.0."}},
    {"an autoencoder (VAE)", {"encoder.conv_in.", "decoder.conv_in."}},
    {"a DiT", {"blocks.0.adaLN_modulation.1.", "x_embedder.proj"}},
    {"a DiT, as diffusers writes it", {"transformer_blocks.0.norm1.emb.timestep_embedder."}},
    {"a CLIP text encoder", {"text_model.embeddings.token_embedding."}},
    {"a CLIP model", {"visual.class_embedding", "token_embedding."}},
    {"a Vision Transformer (ViT)", {"cls_token", "patch_embed.proj."}},
    {"a Vision Transformer (ViT) of torchvision", {"class_token", "encoder.layers.encoder_layer_0."}},
    {"a Vision Transformer (ViT) of transformers", {"embeddings.cls_token", "embeddings.patch_embeddings."}},
    {"an Inception v3", {"Conv2d_1a_3x3.", "Mixed_5b."}},
    {"a ResNet", {"layer1.0.conv1.", "layer4.0.conv1."}},
    {"a VGG network", {"features.0.weight", "classifier.6.weight"}},
};

bool has_part(const std::vector<std::string>& names, const char* part) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.find(part) != std::string::npos; });
}

}  // namespace

std::string network_of(const std::vector<std::string>& names) {
  for (const Signature& s : kSignatures)
    if (std::all_of(s.parts.begin(), s.parts.end(),
                    [&](const char* part) { return part == nullptr || has_part(names, part); }))
      return s.network;
  return "";
}

}  // namespace ditrain::weights
