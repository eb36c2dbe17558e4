// Machines that tests pretend to have: descriptions as HWLOC_SYNTHETIC takes them, and files as HWLOC_XMLFILE does.
#pragma once
#include <hwloc.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <string>

#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/platform/topology.hpp"

namespace ditrain::platform {

/// Sets an environment variable for its own life.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~ScopedVariable() { unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
};

/// The paper's node: 2 sockets of 2 dies of 4 NUMA domains of 38 cores that share an L2.
inline constexpr const char* kLx2 = "package:2 die:2 numa:4 l2:1(size=67108864) core:38 pu:1";
/// The same with DDR of the die and memory on the package in each cluster.
inline constexpr const char* kLx2TwoTiers =
    "package:2 die:2 [numa(memory=137438953472)] group:4 [numa(memory=17179869184)] core:38 pu:1";
inline constexpr const char* kEpycNps1 = "package:2 [numa] l3:8(size=33554432) core:8 pu:2";
inline constexpr const char* kEpycNps4 = "package:2 group:4 [numa] l3:2(size=33554432) core:8 pu:2";
/// Flat memory mode, four domains per socket, each with DRAM and HBM.
inline constexpr const char* kXeonMax =
    "package:2 group:4 [numa(memory=68719476736)] [numa(memory=17179869184)] l2:14 core:1 pu:2";
inline constexpr const char* kLaptop = "package:1 [numa] l3:1(size=33554432) l2:2 core:1 pu:1";

inline Topology synthetic_machine(const std::string& description) {
  const ScopedVariable synthetic("HWLOC_SYNTHETIC", description);
  return probe_machine();
}

/// The machine that a topology describes after it was changed.
inline Topology as_read_from_xml(hwloc_topology_t t) {
  const TemporaryFolder folder;
  const std::string file = folder / "machine.xml";
  REQUIRE(hwloc_topology_export_xml(t, file.c_str(), 0) == 0);
  const ScopedVariable xml("HWLOC_XMLFILE", file);
  return probe_machine();
}

/// A machine whose first memory node is empty.
inline Topology with_empty_first_node(const char* machine) {
  hwloc_topology_t t = nullptr;
  REQUIRE(hwloc_topology_init(&t) == 0);
  REQUIRE(hwloc_topology_set_synthetic(t, machine) == 0);
  REQUIRE(hwloc_topology_load(t) == 0);
  hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, nullptr)->attr->numanode.local_memory = 0;
  const Topology topology = as_read_from_xml(t);
  hwloc_topology_destroy(t);
  return topology;
}

/// A machine whose nodes of 16 GiB are memory on the package: told apart by name, or only by bandwidth [MiB/s].
inline Topology with_package_memory(const char* machine, bool named, hwloc_uint64_t hbm_bandwidth = 200000) {
  hwloc_topology_t t = nullptr;
  REQUIRE(hwloc_topology_init(&t) == 0);
  REQUIRE(hwloc_topology_set_synthetic(t, machine) == 0);
  REQUIRE(hwloc_topology_load(t) == 0);
  for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, node));) {
    const bool hbm = node->attr->numanode.local_memory == hwloc_uint64_t{16} << 30;
    if (named) {
      free(node->subtype);
      node->subtype = strdup(hbm ? "HBM" : "DRAM");
    } else {
      hwloc_location initiator{};
      initiator.type = HWLOC_LOCATION_TYPE_CPUSET;
      initiator.location.cpuset = node->cpuset;
      REQUIRE(hwloc_memattr_set_value(t, HWLOC_MEMATTR_ID_BANDWIDTH, node, &initiator, 0,
                                      hbm ? hbm_bandwidth : 70000) == 0);
    }
  }
  const Topology topology = as_read_from_xml(t);
  hwloc_topology_destroy(t);
  return topology;
}
inline Topology xeon_max(bool named, hwloc_uint64_t hbm_bandwidth = 200000) {
  return with_package_memory(kXeonMax, named, hbm_bandwidth);
}

}  // namespace ditrain::platform
