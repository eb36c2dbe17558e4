#include "ditrain/train/replicas.hpp"

#include "ditrain/ops/checksum.hpp"

namespace ditrain::train {

std::vector<dist::Replica> replicas_of(const config::Config& config, const autograd::ParameterStore& parameters,
                                       ops::Context& ctx) {
  std::vector<dist::Replica> replicas;
  const auto add = [&](const char* name, const Tensor& tensor) {
    if (tensor.defined()) replicas.push_back({name, ops::checksum(ctx, tensor)});
  };
  add("weights", parameters.model_values());
  if (!parameters.published.defined()) add("bf16 weights", parameters.values_bf16);
  if (config.dist.shard_optimizer) return replicas;
  add("ema", parameters.ema);
  for (const autograd::OptimizerState& state : parameters.states)
    if (!state.declared.of_group) add(state.declared.title.c_str(), state.data);
  return replicas;
}

void verify_replicas(const config::Config& config, const autograd::ParameterStore& parameters, int64_t step, int part,
                     dist::Communicator& comm, ops::Context& ctx) {
  if (comm.world_size() > 1)
    dist::compare_replicas(comm, replicas_of(config, parameters, ctx), "after step " + std::to_string(step), part);
}

}  // namespace ditrain::train
