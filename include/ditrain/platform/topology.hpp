// The machine as this process sees it: packages, NUMA domains, cores, caches (hwloc), and which of its processing units
// (PUs, hardware threads) the process may use. HWLOC_SYNTHETIC and HWLOC_XMLFILE replace the machine, never the mask.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace ditrain::platform {

/// Counts are of the whole machine; `allowed_*` are of this process' affinity mask (sched_getaffinity).
struct Topology {
  std::string machine;               ///< host name
  std::string cpu_model;             ///< see cpu_model_name
  int packages = 1;                  ///< sockets
  int numa_domains = 1;              ///< domains with memory
  int cores = 1;                     ///< physical cores
  int pus = 1;                       ///< hardware threads
  std::vector<int> allowed_pus;      ///< PUs of the mask by operating-system number: one per physical core first
  std::vector<int> allowed_domains;  ///< NUMA domain (0, 1, ...) of each of allowed_pus
  int allowed_cores = 1;             ///< physical cores with at least one allowed PU: the first ones of allowed_pus
  size_t l1d_bytes = 0;              ///< one L1 data cache; 0 where unknown
  size_t l2_bytes = 0;               ///< one L2 cache; 0 where unknown
  size_t l3_bytes = 0;               ///< one L3 cache; 0 where unknown or absent
  int l3_caches = 0;                 ///< of the whole machine
};

/// Reads the topology. An allowed PU that the topology lacks (a synthetic one) counts as a core of its own in domain 0.
/// Errors: throws RunError if hwloc cannot load a topology (a bad HWLOC_XMLFILE, say).
Topology probe_topology();

/// A few readable lines, each ended by a newline: host, processor, counts, caches, allowed cores.
std::string describe(const Topology& topology);

/// PU numbers as ranges: {0,1,2,5} gives "0-2,5"; "" for none.
std::string format_pus(std::vector<int> pus);

}  // namespace ditrain::platform
