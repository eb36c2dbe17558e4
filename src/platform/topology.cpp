#include "ditrain/platform/topology.hpp"

#include <fmt/format.h>
#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <type_traits>
#include <utility>

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

using Nodes = std::vector<hwloc_obj_t>;

/// Those that have memory: no page can be bound to others, which stand where a socket has no memory modules. All, where
/// no node tells its size.
Nodes memory_nodes(hwloc_topology_t t) {
  Nodes nodes;
  for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, node));)
    nodes.push_back(node);
  const auto is_empty = [](hwloc_obj_t node) { return node->attr->numanode.local_memory == 0; };
  if (!std::all_of(nodes.begin(), nodes.end(), is_empty)) std::erase_if(nodes, is_empty);
  std::sort(nodes.begin(), nodes.end(), [](hwloc_obj_t a, hwloc_obj_t b) { return a->os_index < b->os_index; });
  return nodes;
}

/// Nodes local to a set of PUs, the nearest (that of the fewest PUs) first, then by number.
Nodes local_to(const Nodes& nodes, hwloc_const_cpuset_t pus) {
  Nodes local;
  for (const hwloc_obj_t node : nodes)
    if (hwloc_bitmap_isincluded(pus, node->cpuset)) local.push_back(node);
  std::stable_sort(local.begin(), local.end(), [](hwloc_obj_t a, hwloc_obj_t b) {
    return hwloc_bitmap_weight(a->cpuset) < hwloc_bitmap_weight(b->cpuset);
  });
  return local;
}

uint64_t bandwidth(hwloc_topology_t t, hwloc_obj_t node) {
  hwloc_location initiator{};
  initiator.type = HWLOC_LOCATION_TYPE_CPUSET;
  initiator.location.cpuset = node->cpuset;
  hwloc_uint64_t value = 0;
  return hwloc_memattr_get_value(t, HWLOC_MEMATTR_ID_BANDWIDTH, node, &initiator, 0, &value) == 0 ? value : 0;
}

/// What hwloc calls it. Where it is silent the node of the lowest number is DRAM, because Linux numbers nodes without
/// cores of their own last, and a node beside it that is half as fast again is HBM.
std::string kind_of(hwloc_topology_t t, const Nodes& nodes, hwloc_obj_t node) {
  if (node->subtype && *node->subtype) return node->subtype;
  const auto owner = std::find_if(nodes.begin(), nodes.end(),
                                  [&](hwloc_obj_t n) { return hwloc_bitmap_isequal(n->cpuset, node->cpuset) != 0; });
  const uint64_t own = bandwidth(t, *owner);
  return own > 0 && bandwidth(t, node) >= own + own / 2 ? "HBM" : "DRAM";
}

bool is_fast(const std::string& kind) { return kind == "HBM" || kind == "MCDRAM" || kind == "SPM"; }

/// Domains in the order in which PUs come; `sets` are their PUs.
struct Domains {
  std::vector<Domain> list;
  std::vector<hwloc_const_cpuset_t> sets;
};

Domain domain_near(hwloc_topology_t t, const Nodes& all, const Nodes& local) {
  Domain domain;
  for (const hwloc_obj_t node : local) {
    int& place = is_fast(kind_of(t, all, node)) ? domain.fast_node : domain.bulk_node;
    if (place < 0) place = int(node->os_index);
  }
  if (domain.bulk_node < 0) domain.bulk_node = std::exchange(domain.fast_node, -1);  // a machine of HBM alone
  if (local.empty() && !all.empty()) domain.bulk_node = int(all.front()->os_index);  // a socket without memory
  return domain;
}

/// Number of the domain of this PU; a new one if it is the first of it.
int domain_of(hwloc_topology_t t, const Nodes& nodes, hwloc_obj_t pu, Domains& domains) {
  const Nodes local = local_to(nodes, pu->cpuset);
  const hwloc_const_cpuset_t set = local.empty() ? hwloc_topology_get_topology_cpuset(t) : local.front()->cpuset;
  for (size_t i = 0; i < domains.sets.size(); ++i)
    if (hwloc_bitmap_isequal(domains.sets[i], set)) return int(i);
  domains.sets.push_back(set);
  domains.list.push_back(domain_near(t, nodes, local));
  return int(domains.list.size()) - 1;
}

/// Number of the object of this type around a PU; `absent` if it does not exist.
int index_around(hwloc_topology_t t, hwloc_obj_type_t type, hwloc_obj_t pu, int absent) {
  const hwloc_obj_t object = hwloc_get_ancestor_obj_by_type(t, type, pu);
  return object ? int(object->logical_index) : absent;
}

void read_units(hwloc_topology_t t, Topology& out) {
  const Nodes nodes = memory_nodes(t);
  Domains domains;
  for (hwloc_obj_t pu = nullptr; (pu = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_PU, pu));) {
    const int package = index_around(t, HWLOC_OBJ_PACKAGE, pu, 0);
    out.units.push_back({.os = int(pu->os_index),
                         // Some virtual machines show PUs without cores: then a PU is its own core.
                         .core = index_around(t, HWLOC_OBJ_CORE, pu, int(pu->logical_index)),
                         .l2 = index_around(t, HWLOC_OBJ_L2CACHE, pu, -1),
                         .l3 = index_around(t, HWLOC_OBJ_L3CACHE, pu, -1),
                         .domain = domain_of(t, nodes, pu, domains),
                         .die = index_around(t, HWLOC_OBJ_DIE, pu, package),
                         .package = package});
  }
  out.domains = domains.list;
  for (const hwloc_obj_t node : nodes) {
    MemoryNode memory{int(node->os_index), size_t(node->attr->numanode.local_memory), kind_of(t, nodes, node), {}};
    for (size_t i = 0; i < domains.sets.size(); ++i)
      if (hwloc_bitmap_isincluded(domains.sets[i], node->cpuset)) memory.domains.push_back(int(i));
    out.memory.push_back(std::move(memory));
  }
}

/// "2 x DRAM 64 GiB, 2 x HBM 16 GiB": nodes alike are counted.
std::string format_memory(const std::vector<MemoryNode>& memory) {
  std::map<std::pair<std::string, size_t>, int> alike;
  for (const MemoryNode& node : memory) ++alike[{node.kind, node.bytes >> 30}];
  std::string out;
  for (const auto& [what, nodes] : alike)
    out += fmt::format("{}{} x {}{}", out.empty() ? "" : ", ", nodes, what.first,
                       what.second > 0 ? fmt::format(" {} GiB", what.second) : "");
  return out;
}

std::string format_cache(size_t bytes) {
  if (bytes == 0) return "unknown";
  return bytes < (size_t{1} << 20) ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} MiB", bytes >> 20);
}

}  // namespace

Topology probe_machine() {
  const TopologyHandle handle = load_topology();
  hwloc_topology_t t = handle.get();
  Topology out;
  out.machine = host_name();
  out.cpu_model = cpu_model_name();
  out.is_this_machine = hwloc_topology_is_thissystem(t) != 0;
  out.packages = count(t, HWLOC_OBJ_PACKAGE);
  out.dies = std::max(out.packages, hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_DIE));
  out.pus = count(t, HWLOC_OBJ_PU);
  const int cores = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_CORE);
  out.cores = cores > 0 ? cores : out.pus;
  out.l1d_bytes = cache_bytes(t, HWLOC_OBJ_L1CACHE);
  out.l2_bytes = cache_bytes(t, HWLOC_OBJ_L2CACHE);
  out.l3_bytes = cache_bytes(t, HWLOC_OBJ_L3CACHE);
  out.l2_caches = std::max(0, hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_L2CACHE));
  out.l3_caches = std::max(0, hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_L3CACHE));
  read_units(t, out);
  out.numa_domains = int(out.domains.size());
  std::vector<int> all;
  for (const Pu& unit : out.units) all.push_back(unit.os);
  return with_mask(std::move(out), all);
}

Topology with_mask(Topology topology, const std::vector<int>& mask) {
  struct Numbered {
    int thread_in_core;  // 0: the first allowed PU of its core
    Pu unit;
  };
  const std::set<int> wanted(mask.begin(), mask.end());
  std::set<int> missing = wanted;
  std::map<int, int> seen;  // allowed PUs found so far in each core
  std::vector<Numbered> found;
  for (const Pu& unit : topology.units)
    if (missing.erase(unit.os) > 0) found.push_back({seen[unit.core]++, unit});
  int foreign_core = int(topology.units.size());  // above every core of the machine
  for (const int pu : missing) found.push_back({0, {.os = pu, .core = foreign_core++}});
  std::stable_sort(found.begin(), found.end(),
                   [](const Numbered& a, const Numbered& b) { return a.thread_in_core < b.thread_in_core; });
  topology.allowed.clear(), topology.allowed_pus.clear(), topology.allowed_domains.clear();
  topology.allowed_cores = 0;
  for (const Numbered& n : found) {
    topology.allowed.push_back(n.unit);
    topology.allowed_pus.push_back(n.unit.os);
    topology.allowed_domains.push_back(n.unit.domain);
    topology.allowed_cores += n.thread_in_core == 0;
  }
  return topology;
}

Topology probe_topology() { return with_mask(probe_machine(), affinity_mask()); }

std::string describe(const Topology& t) {
  return fmt::format(
      "machine:   {}\n"
      "processor: {}\n"
      "layout:    packages {}, dies {}, NUMA domains {}, cores {}, hardware threads {}\n"
      "caches:    L1d {}, L2 {}, L3 {}\n"
      "memory:    {}\n"
      "allowed:   cores {} of {}, hardware threads {} ({})\n",
      t.machine + (t.is_this_machine ? "" : "; what follows is of HWLOC_SYNTHETIC or HWLOC_XMLFILE"), t.cpu_model,
      t.packages, t.dies, t.numa_domains, t.cores, t.pus, format_cache(t.l1d_bytes), format_cache(t.l2_bytes),
      format_cache(t.l3_bytes), t.memory.empty() ? "unknown" : format_memory(t.memory), t.allowed_cores, t.cores,
      t.allowed_pus.size(), format_pus(t.allowed_pus));
}

std::string format_pus(std::vector<int> pus) {
  std::sort(pus.begin(), pus.end());
  pus.erase(std::unique(pus.begin(), pus.end()), pus.end());
  std::string out;
  for (size_t i = 0; i < pus.size();) {
    const int stride = i + 1 < pus.size() ? pus[i + 1] - pus[i] : 1;
    size_t last = i;
    while (last + 1 < pus.size() && pus[last + 1] == pus[last] + stride) ++last;
    if (stride > 1 && last < i + 2) last = i;  // two do not make a pattern
    if (!out.empty()) out += ',';
    out += last == i ? fmt::format("{}", pus[i]) : fmt::format("{}-{}", pus[i], pus[last]);
    if (last > i && stride > 1) out += fmt::format(":{}", stride);
    i = last + 1;
  }
  return out;
}

}  // namespace ditrain::platform
