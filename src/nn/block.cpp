#include "ditrain/nn/block.hpp"

namespace ditrain::nn {

BlockWeights declare_block(const Declarations& block, const ModelConfig& c) {
  const NormWeights norm1 = declare_norm(block, "norm1", c), norm2 = declare_norm(block, "norm2", c);
  BlockWeights w;
  w.attention = declare_attention(block, c);
  w.mlp = declare_mlp(block, c);
  w.attention.input_norm = norm1, w.mlp.input_norm = norm2;
  w.adaLN = declare_modulation(block, c, kNumModulations, "norm1.linear");
  return w;
}

int64_t recognise_variant(const ShapeInFile& shape_of, ModelConfig& config) {
  config.norm = shape_of("blocks.0.norm1.weight") != nullptr ? Norm::kRms : Norm::kLayer;
  recognise_mlp(shape_of, config);
  return recognise_attention(shape_of, config);
}

namespace {

// Tensors that a variant has and the default lacks, with the key and the words of both.
struct OfVariant {
  const char *part, *with, *without;
};
constexpr OfVariant kOfVariants[] = {
    {".norm1.weight", "model.norm: rms", "model.norm: layer"},
    {".norm2.weight", "model.norm: rms", "model.norm: layer"},
    {"final_layer.norm_final.weight", "model.norm: rms", "model.norm: layer"},
    {".mlp.w12.", "model.mlp: swiglu", "model.mlp: gelu"},
    {".mlp.w3.", "model.mlp: swiglu", "model.mlp: gelu"},
    {".mlp.fc1.", "model.mlp: gelu", "model.mlp: swiglu if the file has mlp.w12"},
    {".mlp.fc2.", "model.mlp: gelu", "model.mlp: swiglu if the file has mlp.w3"},
    {"x_embedder.proj.", "model.patch_bottleneck: 0", "model.patch_bottleneck: the rows of x_embedder.proj1.weight"},
    {"x_embedder.proj1.", "model.patch_bottleneck: its rows", "model.patch_bottleneck: 0"},
    {"x_embedder.proj2.", "model.patch_bottleneck: the rows of x_embedder.proj1.weight", "model.patch_bottleneck: 0"},
};

}  // namespace

std::string advice_on_tensor(const std::string& name, bool extra) {
  for (const OfVariant& v : kOfVariants)
    if (name.find(v.part) != name.npos) return extra ? v.without : v.with;
  if (name == "pos_embed") return extra ? "model.position: rope" : "model.position: sincos";
  return advice_on_attention(name, extra);
}

std::vector<Parameter*> BlockWeights::in_arena_attention() const {
  std::vector<Parameter*> all{adaLN.w, adaLN.b};
  for (Parameter* p : attention.input_norm.with(attention.in_arena())) all.push_back(p);
  return all;
}

std::vector<Parameter*> BlockWeights::in_arena() const {
  std::vector<Parameter*> all = in_arena_attention();
  for (Parameter* p : mlp.in_arena()) all.push_back(p);
  return all;
}

}  // namespace ditrain::nn
