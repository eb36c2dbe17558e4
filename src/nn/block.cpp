#include "ditrain/nn/block.hpp"

namespace ditrain::nn {

BlockWeights declare_block(const Declarations& block, const DitConfig& c) {
  const NormWeights norm1 = declare_norm(block, "norm1", c), norm2 = declare_norm(block, "norm2", c);
  BlockWeights w;
  w.attention = declare_attention(block, c);
  w.mlp = declare_mlp(block, c);
  w.attention.input_norm = norm1, w.mlp.input_norm = norm2;
  w.adaLN = declare_modulation(block, c, kNumModulations, "norm1.linear");
  return w;
}

int64_t recognise_variant(const ShapeInFile& shape_of, DitConfig& config) {
  return recognise_attention(shape_of, config);
}

std::string advice_on_tensor(const std::string& name, bool extra) {
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
