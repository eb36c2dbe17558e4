// Refuses a run that does not fit into the memory of a node, with settings that would fit, or onto its disk.
#pragma once
#include <string>

#include "ditrain/plan/run_plan.hpp"

namespace ditrain::plan {

/// Compares the memory of the plan.place.ranks_on_node ranks of a node with the node's limit (RAM, cgroup or rlimit),
/// and that of the first of them, which takes most, with the limit of a process (rlimit).
/// Errors:   InputError with the memory plan, the limit and what would fit (a smaller micro-batch, more recomputation,
///           a sharded optimizer, fewer ranks, a disk tier)
void check_memory(const RunPlan& plan);

/// What to tell a user whose run fits into the node, but not beside what other programs hold there; else empty.
std::string memory_warning(const RunPlan& plan);

/// The same check for a program that does not train: each rank of the node takes `bytes_of_rank` for `what`.
void check_memory(size_t bytes_of_rank, int ranks_on_node, const std::string& what, const std::string& hint);

/// Compares what all ranks of a node take of slow tiers outside of memory (disk) with the space on this machine.
/// Without memory.disk_path the disk is that of the run folder, which need not exist yet.
/// Errors:   InputError as memory::check_disk
void check_tiers(const RunPlan& plan, const std::string& run_folder);

}  // namespace ditrain::plan
