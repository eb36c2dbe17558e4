// The machine as this process sees it: packages, dies, NUMA domains, cores, caches, kinds of memory (from hwloc), and
// the processing units (PUs, hardware threads) that the process may use. The environment variables HWLOC_SYNTHETIC and
// HWLOC_XMLFILE replace the machine, but not the affinity mask.
//
// A domain is a set of PUs that are near to the same memory. Where a die has its own memory and each of its core groups
// has faster memory besides, the core groups are the domains. A memory node is a range of memory that Linux numbers (a
// NUMA node). One domain may be near to several nodes (DRAM and HBM), and one node near to several domains.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace ditrain::platform {

/// A hardware thread and its place. All numbers but `os` count from 0 over the whole machine; -1: hwloc reports none.
struct Pu {
  int os = 0;  ///< the number by which the operating system and affinity masks know it
  int core = 0;
  int l2 = -1, l3 = -1;  ///< caches
  int domain = 0, die = 0, package = 0;
};

/// A NUMA node of the operating system.
struct MemoryNode {
  int os = 0;                ///< its number, as mbind takes it
  size_t bytes = 0;          ///< 0 where unknown
  std::string kind;          ///< DRAM, HBM, MCDRAM, NVM, ... as hwloc calls it or as its bandwidth tells
  std::vector<int> domains;  ///< domains for which this node is local
};

/// The memory nodes for a domain's memory; -1: none.
struct Domain {
  int bulk_node = -1;  ///< nearest ordinary memory
  int fast_node = -1;  ///< nearest memory on the package (HBM), if there is any beside the ordinary memory
};

/// Counts are for the whole machine; `allowed*` for an affinity mask, usually that of this process (sched_getaffinity).
struct Topology {
  std::string machine;               ///< host name
  std::string cpu_model;             ///< see cpu_model_name
  bool is_this_machine = true;       ///< false: HWLOC_SYNTHETIC or HWLOC_XMLFILE stands for another one
  int packages = 1;                  ///< sockets
  int dies = 1;                      ///< equal to packages where hwloc reports no dies
  int numa_domains = 1;              ///< domains, see above
  int cores = 1;                     ///< physical cores
  int pus = 1;                       ///< hardware threads
  std::vector<Pu> units;             ///< every PU of the machine; the PUs of a core are neighbours
  std::vector<Domain> domains;       ///< numa_domains of them
  std::vector<MemoryNode> memory;    ///< by number
  std::vector<Pu> allowed;           ///< PUs of the mask: one per physical core first, each time in machine order
  std::vector<int> allowed_pus;      ///< their operating-system numbers
  std::vector<int> allowed_domains;  ///< their domains
  int allowed_cores = 1;             ///< physical cores with at least one allowed PU: the first ones of `allowed`
  size_t l1d_bytes = 0;              ///< bytes of one L1 data cache; 0 where unknown
  size_t l2_bytes = 0;               ///< bytes of one L2 cache; 0 where unknown
  size_t l3_bytes = 0;               ///< bytes of one L3 cache; 0 where unknown or absent
  int l2_caches = 0, l3_caches = 0;  ///< numbers of caches in the whole machine
};

/// Reads the topology, with every PU allowed.
/// Errors: throws RunError if hwloc cannot load a topology (a bad HWLOC_XMLFILE, say).
Topology probe_machine();

/// The same machine with another mask of operating-system numbers. A PU that the machine lacks (because the machine is
/// synthetic and the mask real) counts as a core of its own in domain 0.
Topology with_mask(Topology topology, const std::vector<int>& mask);

/// The machine with this process' affinity mask. Errors: as probe_machine.
Topology probe_topology();

/// A few readable lines, each ended by a newline: host, processor, counts, caches, memory, allowed cores.
std::string describe(const Topology& topology);

/// Numbers (of PUs, say) as ranges: {0,1,2,5} gives "0-2,5", {0,2,4} gives "0-4:2"; "" for none. Equal ones
/// count once.
std::string format_pus(std::vector<int> pus);

}  // namespace ditrain::platform
