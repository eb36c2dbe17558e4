// The refusal of a run that does not fit into the memory of a node, with what would fit.
#pragma once
#include "ditrain/plan/run_plan.hpp"

namespace ditrain::plan {

/// Holds the memory of plan.place.ranks_on_node such ranks against the node's limit (RAM, cgroup or rlimit).
/// Errors:   InputError with the memory plan, the limit and what would fit (a smaller micro-batch, more recomputation,
///           a sharded optimizer, fewer ranks)
void check_memory(const RunPlan& plan);

}  // namespace ditrain::plan
