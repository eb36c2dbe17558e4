#include "ditrain/platform/topology.hpp"

#include <fmt/format.h>
#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <type_traits>

#include "ditrain/base/error.hpp"
#include "ditrain/platform/affinity.hpp"
#include "ditrain/platform/cpu.hpp"

namespace ditrain::platform {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology_t t) const { hwloc_topology_destroy(t); }
};
using TopologyHandle = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, DestroyTopology>;

TopologyHandle load_topology() {
  hwloc_topology_t raw = nullptr;
  const bool created = hwloc_topology_init(&raw) == 0;
  TopologyHandle handle(created ? raw : nullptr);
  if (!created || hwloc_topology_load(raw) != 0)
    throw RunError({.where = "topology",
                    .what = std::string("hwloc cannot load the topology: ") + std::strerror(errno),
                    .hint = "without HWLOC_XMLFILE and HWLOC_SYNTHETIC in the environment"});
  return handle;
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] ? name : "unknown";
}

/// Number of objects of a type; at least 1, as hwloc leaves out what it cannot see.
int count(hwloc_topology_t t, hwloc_obj_type_t type) { return std::max(1, hwloc_get_nbobjs_by_type(t, type)); }

size_t cache_bytes(hwloc_topology_t t, hwloc_obj_type_t type) {
  const hwloc_obj_t cache = hwloc_get_obj_by_type(t, type, 0);
  return cache ? size_t(cache->attr->cache.size) : 0;
}

/// Number (0, 1, ...) of the first NUMA domain that holds this PU.
int domain_of(hwloc_topology_t t, hwloc_obj_t pu) {
  for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, node));)
    if (hwloc_bitmap_isset(node->cpuset, pu->os_index)) return int(node->logical_index);
  return 0;
}

/// Where an allowed PU lies in the machine; the order of PUs is by thread number within the core, then as in the
/// machine.
struct Place {
  int thread_in_core;  // 0: the first allowed PU of its core
  int core, pu, domain;
};

std::vector<Place> place_pus(hwloc_topology_t t, const std::vector<int>& mask) {
  std::vector<Place> places;
  std::map<int, int> seen;                                       // allowed PUs found so far in each core
  int foreign_core = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_PU);  // above every logical index of the machine
  for (const int pu : mask) {
    const hwloc_obj_t object = hwloc_get_pu_obj_by_os_index(t, unsigned(pu));
    const hwloc_obj_t core = object ? hwloc_get_ancestor_obj_by_type(t, HWLOC_OBJ_CORE, object) : nullptr;
    // Some virtual machines show PUs without cores: then a PU is its own core.
    const int index = core ? int(core->logical_index) : object ? int(object->logical_index) : foreign_core++;
    places.push_back({seen[index]++, index, pu, object ? domain_of(t, object) : 0});
  }
  std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return a.thread_in_core != b.thread_in_core ? a.thread_in_core < b.thread_in_core : a.core < b.core;
  });
  return places;
}

std::string format_cache(size_t bytes) {
  if (bytes == 0) return "unknown";
  return bytes < (size_t{1} << 20) ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} MiB", bytes >> 20);
}

}  // namespace

Topology probe_topology() {
  const TopologyHandle handle = load_topology();
  hwloc_topology_t t = handle.get();
  Topology out;
  out.machine = host_name();
  out.cpu_model = cpu_model_name();
  out.packages = count(t, HWLOC_OBJ_PACKAGE);
  out.numa_domains = count(t, HWLOC_OBJ_NUMANODE);
  out.pus = count(t, HWLOC_OBJ_PU);
  const int cores = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_CORE);
  out.cores = cores > 0 ? cores : out.pus;
  out.l1d_bytes = cache_bytes(t, HWLOC_OBJ_L1CACHE);
  out.l2_bytes = cache_bytes(t, HWLOC_OBJ_L2CACHE);
  out.l3_bytes = cache_bytes(t, HWLOC_OBJ_L3CACHE);
  out.l3_caches = std::max(0, hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_L3CACHE));
  const std::vector<Place> places = place_pus(t, affinity_mask());
  for (const Place& place : places) {
    out.allowed_pus.push_back(place.pu);
    out.allowed_domains.push_back(place.domain);
  }
  out.allowed_cores =
      int(std::count_if(places.begin(), places.end(), [](const Place& p) { return p.thread_in_core == 0; }));
  return out;
}

std::string describe(const Topology& t) {
  return fmt::format(
      "machine:   {}\n"
      "processor: {}\n"
      "layout:    packages {}, NUMA domains {}, cores {}, hardware threads {}\n"
      "caches:    L1d {}, L2 {}, L3 {}\n"
      "allowed:   cores {} of {}, hardware threads {} ({})\n",
      t.machine, t.cpu_model, t.packages, t.numa_domains, t.cores, t.pus, format_cache(t.l1d_bytes),
      format_cache(t.l2_bytes), format_cache(t.l3_bytes), t.allowed_cores, t.cores, t.allowed_pus.size(),
      format_pus(t.allowed_pus));
}

std::string format_pus(std::vector<int> pus) {
  std::sort(pus.begin(), pus.end());
  std::string out;
  for (size_t i = 0; i < pus.size();) {
    size_t last = i;
    while (last + 1 < pus.size() && pus[last + 1] == pus[last] + 1) ++last;
    if (!out.empty()) out += ',';
    out += last == i ? fmt::format("{}", pus[i]) : fmt::format("{}-{}", pus[i], pus[last]);
    i = last + 1;
  }
  return out;
}

}  // namespace ditrain::platform
