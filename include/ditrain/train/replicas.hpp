// Checks that the replicas on the ranks of a run are still equal.
#pragma once
#include <vector>

#include "ditrain/autograd/parameters.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/dist/replicas.hpp"
#include "ditrain/ops/context.hpp"

namespace ditrain::train {

/// Checksums of weights, EMA and optimiser state, in one pass over that memory by the whole team. With
/// dist.shard_optimizer only the weights count, because ranks hold different parts of the rest; with dist.outer the
/// arrays that each group has for itself are left out.
std::vector<dist::Replica> replicas_of(const config::Config& config, const autograd::ParameterStore& parameters,
                                       ops::Context& ctx);

/// Compares the replicas of all ranks. If ranks share a replica (dp_tp), those with the same `part` of it are compared.
/// Collective over all ranks; does nothing on one. Step -1: the run starts from files that each rank has read.
/// Errors:   RunError "[replicas] after step N ..." on all ranks, as dist::compare_replicas
void verify_replicas(const config::Config& config, const autograd::ParameterStore& parameters, int64_t step, int part,
                     dist::Communicator& comm, ops::Context& ctx);

}  // namespace ditrain::train
