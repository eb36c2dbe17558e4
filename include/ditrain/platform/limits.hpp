// How much memory and how many cores this process may use, and where the limit comes from: machine, cgroup (v1 and v2),
// rlimits, launcher. Files are read below `root` ("" is the real system), so that tests can simulate another machine.
#pragma once
#include <cstddef>
#include <functional>
#include <string>

#include "ditrain/platform/topology.hpp"

namespace ditrain::platform {

/// A number of bytes and what set it, for example "physical RAM" or "cgroup /sys/fs/cgroup/job/memory.max".
struct MemoryLimit {
  size_t bytes = 0;
  std::string source;
};

/// The memory beside explicit huge pages that all ranks of this node may use together. It is the smallest of physical
/// RAM (MemTotal without the pages that are reserved as huge ones), the memory limits of this process' cgroup and its
/// ancestors (memory.max and memory.high; v1: memory.limit_in_bytes), and the soft RLIMIT_AS and RLIMIT_DATA. An rlimit
/// holds for one process and is therefore multiplied by ranks_on_node.
/// Errors: throws RunError if the size of the RAM cannot be read.
MemoryLimit memory_limit(int ranks_on_node = 1, const std::string& root = "");

/// What this process may have whatever the others take: the smaller of its soft RLIMIT_AS and RLIMIT_DATA; the largest
/// size_t and "" without them.
MemoryLimit process_memory_limit();

/// What a node has free.
struct FreeMemory {
  size_t available = 0;      ///< MemAvailable: what programs can take without paging; the largest size_t if unknown
  size_t explicit_huge = 0;  ///< bytes in explicit pages of 2 MiB that are free and reserved by no other program, as
                             ///< far as the cgroup allows them
};
FreeMemory free_memory(const std::string& root = "");
/// The same when this program began, before ranks took memory: they ask at different times.
const FreeMemory& free_memory_at_start();

/// Bytes of explicit 2 MiB huge pages that this process' cgroup and its ancestors still allow, and the file with the
/// limit; the largest size_t and "" if there is no limit. Touching a page beyond the limit ends the process by SIGBUS.
MemoryLimit explicit_huge_left(const std::string& root = "");

/// CPU time that the cgroup of this process and its ancestors grant, in cores (CPU seconds per second); infinity
/// without a quota.
double cpu_quota(const std::string& root = "");

/// Bytes of this process that are in RAM now, explicit huge pages included.
size_t resident_bytes();
/// The most bytes of this process that were in RAM at one time since its start, or since the peak was restarted,
/// explicit huge pages included.
size_t peak_resident_bytes();
/// Lets peak_resident_bytes begin anew at what is in RAM now. False if the kernel refuses.
bool restart_peak_resident_bytes();
/// Bytes of explicit huge pages that this process has: Linux counts them neither as resident (RSS) nor in PSS.
size_t explicit_huge_bytes();

/// The number of threads of a rank, and which limit determined it.
struct ThreadCount {
  int threads = 1;
  std::string ruled_by;
};

/// How ranks share the cores. Both counts include this rank.
struct Sharing {
  int ranks_on_mask = 1;   ///< ranks whose affinity masks overlap with this one's
  int ranks_on_quota = 1;  ///< ranks under the same cgroup quota
  bool smt = false;        ///< run a thread on every allowed hardware thread, not one per core
};

/// Looks up an environment variable; nullptr if it is not set.
using EnvLookup = std::function<const char*(const char*)>;

/// The smallest of: allowed cores (smt: hardware threads) / ranks_on_mask, cgroup quota / ranks_on_quota (unless the
/// topology is of another machine), SLURM_CPUS_PER_TASK, OMP_NUM_THREADS (its first number). Quotients are rounded
/// down; the result is at least 1. A variable that is not a positive whole number is ignored. On a tie `ruled_by` names
/// the earlier one in this list.
ThreadCount default_threads(const Topology& topology, const Sharing& sharing = {}, const std::string& root = "",
                            const EnvLookup& lookup = {});

}  // namespace ditrain::platform
