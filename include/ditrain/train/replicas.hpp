// What the ranks of a run hold in common, compared.
#pragma once
#include <vector>

#include "ditrain/autograd/parameters.hpp"
#include "ditrain/config/config.hpp"
#include "ditrain/dist/replicas.hpp"
#include "ditrain/ops/context.hpp"

namespace ditrain::train {

/// Checksums of weights, EMA and moments, one pass over that memory by the whole team; with dist.shard_optimizer, under
/// which ranks have parts of the rest, of the weights alone.
std::vector<dist::Replica> replicas_of(const config::Config& config, const autograd::ParameterStore& parameters,
                                       ops::Context& ctx);

/// Compares the replicas of all ranks; where ranks share one (dp_tp), those of the ranks with the same part of it,
/// `part`. Collective over all ranks; nothing to do for one.
/// Errors:   RunError "[replicas] after step N ..." on all ranks, as dist::compare_replicas
void verify_replicas(const config::Config& config, const autograd::ParameterStore& parameters, int64_t step, int part,
                     dist::Communicator& comm, ops::Context& ctx);

}  // namespace ditrain::train
