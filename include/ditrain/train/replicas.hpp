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

/// What each group of ranks has for itself with dist.outer: optimiser state, and with `overlap` its weights.
std::vector<dist::Replica> replicas_of_group(const config::Config& config, const autograd::ParameterStore& parameters,
                                             ops::Context& ctx);

/// The part of a replica that a rank has, if ranks share one (dp_tp), and its group (dist.outer).
struct ReplicaPlace {
  int part = 0, group = 0;
};
/// Compares the replicas of all ranks with the same part, and those of the ranks of each group. Collective over all
/// ranks; does nothing on one. Step -1: the run starts from files that each rank has read.
/// Errors:   RunError "[replicas] after step N ..." on all ranks, as dist::compare_replicas
void verify_replicas(const config::Config& config, const autograd::ParameterStore& parameters, int64_t step,
                     const ReplicaPlace& place, dist::Communicator& comm, ops::Context& ctx);

}  // namespace ditrain::train
