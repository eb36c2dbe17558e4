// Where layers declare their parameters. Each is declared once, in the file of its layer, beside forward and backward:
// name, shape, initial values, split over ranks, names in other formats. State dict, initialisation, tensor-parallel
// parts, counts of work, bytes that GEMMs read (parallel.cut: auto) and exports follow from there.
//
//   LinearWeights proj = block.linear({.name = "attn.proj", .weight = {C, C}, .split = WeightSplit::kInputs,
//                                      .diffusers = {"attn1.to_out.0"}});
//
// Layers are declared in the order of the reference's __init__, which is that of its state dict. The order of the
// arenas is another one: see Network::in_arena.
#pragma once
#include "ditrain/nn/layers.hpp"

namespace ditrain::nn {

using autograd::Initial;
using autograd::ParameterGroup;
using autograd::ProductRows;

/// How ranks that share a replica split a layer: each rank has all of it, or a part of its outputs (of every third for
/// qkv, of either half for SwiGLU) or of its inputs. A bias is split with the outputs.
enum class WeightSplit { kNone, kOutputs, kHalves, kThirds, kInputs };

/// A linear layer, `name`.weight and `name`.bias.
struct LinearDeclaration {
  std::string name = {};                        ///< within its module, "attn.qkv"
  Shape weight = {};                            ///< [N, K], or [N, ...]: K is what follows N
  Initial initial = Initial::xavier_uniform();  ///< of the weight
  ProductRows rows = ProductRows::kTokens;
  ParameterGroup group = ParameterGroup::kBlockMatrix;  ///< of the weight
  int64_t stacked = 1;                                  ///< see Parameter
  WeightSplit split = WeightSplit::kNone;
  bool offers_gradient = false;
  bool has_bias = true;
  Initial initial_bias = Initial::constant(0);
  std::vector<std::string> diffusers = {};  ///< see Parameter; without .weight and .bias
};

/// Declares the layers of one module. The module's name, here and in diffusers files, is the prefix of their names.
class Declarations {
 public:
  Declarations(autograd::ParameterStore& store, const TensorParallel& tensor) : store_(store), tensor_(tensor) {}
  /// A module within this one; files of diffusers may have no such level.
  Declarations in(const std::string& name, const std::string& diffusers = "") const;

  LinearWeights linear(const LinearDeclaration& layer) const;
  /// A parameter that every rank has in full.
  Parameter* parameter(Parameter declared) const;

 private:
  Parameter* add(Parameter declared, WeightSplit split) const;

  autograd::ParameterStore& store_;
  const TensorParallel& tensor_;
  std::string prefix_ = {}, diffusers_prefix_ = {};
};

}  // namespace ditrain::nn
