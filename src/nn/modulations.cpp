#include "ditrain/nn/modulations.hpp"

namespace ditrain::nn {

LinearWeights declare_modulation(const Declarations& module, const ModelConfig& c, int64_t chunks,
                                 const std::string& diffusers) {
  return module.linear({.name = "adaLN_modulation.1",
                        .weight = {chunks * c.hidden_size, c.hidden_size},
                        .initial = Initial::constant(0),
                        .rows = ProductRows::kOne,
                        .group = ParameterGroup::kModulation,
                        .offers_gradient = true,
                        .diffusers = {diffusers}});
}

AdalnModulation::AdalnModulation(autograd::Tape& tape, const std::string& module, const LinearWeights& weights,
                                 const TokenStream& stream)
    : Node(module + ".adaLN_modulation", {}), weights_(weights), stream_(stream) {
  weights_.products = stream.activations;
  const Shape shape{stream.batch, weights_.b->size()};
  // All of them are there before the first one is used: in inference, too, each has memory of its own.
  out_ = tape.mode() == autograd::Mode::kInference ? tape.temporary(name(), shape) : tape.keep(*this, "out", shape);
}

}  // namespace ditrain::nn
