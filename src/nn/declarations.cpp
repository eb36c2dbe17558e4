#include "ditrain/nn/declarations.hpp"

namespace ditrain::nn {
namespace {

// Rank `rank` of `size` gets this part of a weight [N, K] or a bias [N].
void take_part(Parameter& p, WeightSplit split, const TensorParallel& tensor) {
  const int64_t outputs = p.full_shape[0], inputs = num_elements(p.full_shape) / outputs;
  p.shape = p.full_shape;
  p.part = {.outer = 1, .length = outputs, .inner = inputs};
  if (split == WeightSplit::kInputs)
    p.part = {.outer = outputs, .length = inputs}, p.shape = {outputs, inputs / tensor.size};
  else
    p.shape[0] /= tensor.size;
  if (split == WeightSplit::kHalves) p.part.outer = 2, p.part.length /= 2;
  if (split == WeightSplit::kThirds) p.part.outer = 3, p.part.length /= 3;
  p.part.begin = p.part.length / tensor.size * tensor.rank;
  p.part.end = p.part.begin + p.part.length / tensor.size;
}

std::vector<std::string> with(const std::string& before, std::vector<std::string> names, const std::string& after) {
  for (std::string& name : names) name = before + name + after;
  return names;
}

}  // namespace

Declarations Declarations::in(const std::string& name, const std::string& diffusers) const {
  Declarations module = *this;
  module.prefix_ += name + ".";
  if (!diffusers.empty()) module.diffusers_prefix_ += diffusers + ".";
  return module;
}

Parameter* Declarations::add(Parameter p, WeightSplit split) const {
  p.name = prefix_ + p.name;
  p.diffusers = with(diffusers_prefix_, std::move(p.diffusers), "");
  const bool whole = split == WeightSplit::kNone || (split == WeightSplit::kInputs && p.full_shape.size() == 1);
  if (!whole && !tensor_.alone()) take_part(p, split, tensor_);
  return &store_.add(std::move(p));
}

Parameter* Declarations::parameter(Parameter declared) const { return add(std::move(declared), WeightSplit::kNone); }

LinearWeights Declarations::linear(const LinearDeclaration& l) const {
  Parameter* w = add({.name = l.name + ".weight",
                      .full_shape = l.weight,
                      .initial = l.initial,
                      .group = l.group,
                      .stacked = l.stacked,
                      .product = l.rows,
                      .offers_gradient = l.offers_gradient,
                      .diffusers = with("", l.diffusers, ".weight")},
                     l.split);
  if (!l.has_bias) return {w, nullptr};
  Parameter* b = add({.name = l.name + ".bias",
                      .full_shape = {l.weight[0]},
                      .initial = l.initial_bias,
                      .group = ParameterGroup::kBias,
                      .diffusers = with("", l.diffusers, ".bias")},
                     l.split);
  return {w, b};
}

}  // namespace ditrain::nn
