// How much memory and how many cores this process may use, and what says so: machine, cgroup (v1 and v2), rlimits,
// launcher. Files are read below `root` ("" is the real system), so that tests can pretend another machine.
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

/// What all ranks of this node together may use: the smallest of physical RAM (MemTotal without the reserved huge pages
/// that are in use; without all of them if the run does not use explicit ones), the memory limits of this process'
/// cgroup and its ancestors, and the soft RLIMIT_AS and RLIMIT_DATA. An rlimit holds for one process and is therefore
/// taken times ranks_on_node.
/// Errors: throws RunError if the size of the RAM cannot be read.
MemoryLimit memory_limit(int ranks_on_node = 1, const std::string& root = "", bool uses_explicit = true);

/// Bytes of explicit huge pages of 2 MiB that this process' cgroup and its ancestors still allow, and the file that
/// says so; the largest size_t and "" if none does. Past it a first touch ends the process by SIGBUS.
MemoryLimit explicit_huge_left(const std::string& root = "");

/// Cores' worth of time that the cgroup of this process and its ancestors grant; infinity without a quota.
double cpu_quota(const std::string& root = "");

/// Bytes of this process that are in RAM now, explicit huge pages included.
size_t resident_bytes();
/// Most bytes of this process that were in RAM at once, since its start; the same.
size_t peak_resident_bytes();
/// Bytes of explicit huge pages that this process has: Linux counts them neither as resident (RSS) nor in PSS.
size_t explicit_huge_bytes();

/// Number of threads of a rank and what limited it.
struct ThreadCount {
  int threads = 1;
  std::string ruled_by;
};

/// Who else uses the cores: ranks whose affinity masks overlap with this one's, and ranks under the same cgroup quota.
/// Both count this rank. And whether threads may share a core.
struct Sharing {
  int ranks_on_mask = 1;
  int ranks_on_quota = 1;
  bool smt = false;  ///< a thread on every allowed hardware thread of a core
};

/// How to look up an environment variable: nullptr if it is not set.
using EnvLookup = std::function<const char*(const char*)>;

/// The least of: allowed cores (smt: hardware threads) / ranks_on_mask, cgroup quota / ranks_on_quota (unless the
/// topology is of another machine), SLURM_CPUS_PER_TASK, OMP_NUM_THREADS (its first number); quotients are rounded
/// down, the result is at least 1. A variable that is not a positive whole number is ignored. On a tie the earlier of
/// this list is named.
ThreadCount default_threads(const Topology& topology, const Sharing& sharing = {}, const std::string& root = "",
                            const EnvLookup& lookup = {});

}  // namespace ditrain::platform
