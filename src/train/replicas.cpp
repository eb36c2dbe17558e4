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

std::vector<dist::Replica> replicas_of_group(const config::Config& config, const autograd::ParameterStore& parameters,
                                             ops::Context& ctx) {
  std::vector<dist::Replica> replicas;
  const auto add = [&](const std::string& name, const Tensor& tensor) {
    if (tensor.defined()) replicas.push_back({name + " of the group", ops::checksum(ctx, tensor)});
  };
  if (parameters.published.defined()) add("weights", parameters.values), add("bf16 weights", parameters.values_bf16);
  if (config.dist.shard_optimizer) return replicas;
  for (const autograd::OptimizerState& state : parameters.states)
    if (state.declared.of_group) add(state.declared.title, state.data);
  return replicas;
}

void verify_replicas(const config::Config& config, const autograd::ParameterStore& parameters, int64_t step,
                     const ReplicaPlace& place, dist::Communicator& comm, ops::Context& ctx) {
  if (comm.world_size() == 1) return;
  const bool starts = step < 0;
  const auto compare = [&](const std::vector<dist::Replica>& replicas, int part) {
    dist::compare_replicas(
        comm, replicas, starts ? "at the start" : "after step " + std::to_string(step), part,
        starts ? "the same files for all ranks, on a file system that all nodes share (train.init_from, "
                 "train.branch_from, checkpoints)"
               : "--resume auto, which goes on from the last checkpoint; if it is the same host again, "
                 "its memory or processor is suspect: leave it out");
  };
  compare(replicas_of(config, parameters, ctx), place.part);
  if (config.dist.outer) compare(replicas_of_group(config, parameters, ctx), place.group);
}

}  // namespace ditrain::train
