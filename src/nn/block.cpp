#include "ditrain/nn/block.hpp"

namespace ditrain::nn {

BlockWeights declare_block(const Declarations& block, const DitConfig& c) {
  BlockWeights w;
  w.attention = declare_attention(block, c);
  w.mlp = declare_mlp(block, c);
  w.adaLN = declare_modulation(block, c, kNumModulations, "norm1.linear");
  return w;
}

std::vector<Parameter*> BlockWeights::in_arena_attention() const {
  std::vector<Parameter*> all{adaLN.w, adaLN.b};
  for (Parameter* p : attention.in_arena()) all.push_back(p);
  return all;
}

std::vector<Parameter*> BlockWeights::in_arena() const {
  std::vector<Parameter*> all = in_arena_attention();
  for (Parameter* p : mlp.in_arena()) all.push_back(p);
  return all;
}

}  // namespace ditrain::nn
