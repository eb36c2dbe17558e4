#include "ditrain/bench/memory_matrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/parallel/team.hpp"
#include "ditrain/platform/numa.hpp"
#include "ditrain/platform/pages.hpp"
#include "reach.hpp"
#include "stop.hpp"
#include "turns.hpp"

namespace ditrain::bench {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& hint) {
  ditrain::refuse("memory --matrix", what, "", "", hint);
}

// Memory on one node and nowhere else.
class NodeBlock {
 public:
  NodeBlock(size_t bytes, int node) : node_(node), block_(bytes, platform::PagePolicy::kTransparent) {
    // A node that is full would kill the process.
    const auto available = platform::free_memory_on_node(node);
    const size_t wanted = bytes + (size_t{64} << 20),
                 free = available ? available->free_bytes + available->cached_bytes : wanted;
    if (free < wanted)
      refuse(
          fmt::format("NUMA node {} has {} free where {} are wanted", node, format_bytes(free), format_bytes(wanted)),
          "when other programs have ended");
    const auto placed = platform::place_on_nodes(data(), block_.bytes(), {node}, platform::NodePolicy::kBind);
    if (!placed)
      refuse(placed.reason, "outside of a container, or with --security-opt seccomp=unconfined --cap-add SYS_NICE");
  }
  std::byte* data() const { return block_.data(); }
  /// Call once all of it is touched.
  void expect_on_node() const {
    const auto places = platform::bytes_on_nodes(data(), block_.bytes());
    for (const auto& [node, bytes] : places)
      if (node != node_)
        refuse(fmt::format("memory that was bound to NUMA node {} is not there: {}", node_,
                           platform::format_places(places)),
               "the kernel's setting: cat /proc/sys/kernel/numa_balancing");
  }

 private:
  const int node_;
  platform::PageBlock block_;
};

MatrixCell measure_here(const CoreDomain& domain, const platform::MemoryNode& node, size_t bytes,
                        const Effort& effort) {
  parallel::Team team({.num_workers = int(domain.pus.size()), .pus = domain.pus});
  if (const auto& failures = team.binding_failures(); !failures.empty())
    refuse(failures.front(), "an affinity mask that holds the cores (taskset -p $$)");
  NodeBlock block(bytes, node.os);
  ops::Context ctx(team);
  stream(ctx, {.writes = 1}, {reinterpret_cast<float*>(block.data())}, int64_t(bytes / sizeof(float)));
  block.expect_on_node();
  const std::vector<double> read = pass_seconds(ctx, {.reads = 1}, block.data(), bytes, effort);
  const std::vector<double> latency = load_seconds(block.data(), bytes, effort);
  return {double(bytes) / std::max(quantile(read, 0), 1e-9) * 1e-9, quantile(latency, 0.5)};
}

using Value = double (*)(const MatrixCell&);

std::string matrix_table(const char* title, const std::vector<CoreDomain>& domains,
                         const std::vector<platform::MemoryNode>& nodes, const std::vector<MatrixCell>& cells,
                         Value value) {
  size_t first = std::strlen(title);
  for (const CoreDomain& d : domains) first = std::max(first, d.name.size());
  std::string text = fmt::format("{:<{}}", title, first);
  std::vector<std::string> heads;
  for (const platform::MemoryNode& n : nodes) {
    heads.push_back(fmt::format("node {} {}", n.os, n.kind));
    text += "  " + heads.back();
  }
  for (size_t d = 0; d < domains.size(); ++d) {
    text += fmt::format("\n{:<{}}", domains[d].name, first);
    for (size_t n = 0; n < nodes.size(); ++n)
      text += fmt::format("  {:>{}.1f}", value(cells[d * nodes.size() + n]), heads[n].size());
  }
  return text;
}

}  // namespace

std::vector<CoreDomain> core_domains(const platform::Topology& topology) {
  std::map<std::pair<int, int>, std::vector<int>> pus;  // of a domain on a die
  for (int i = 0; i < topology.allowed_cores; ++i) {
    const platform::Pu& pu = topology.allowed[size_t(i)];
    pus[{pu.die, pu.domain}].push_back(pu.os);
  }
  std::vector<CoreDomain> domains;
  for (const auto& [place, list] : pus)
    domains.push_back(
        {fmt::format("die {}, domain {} (PU {})", place.first, place.second, platform::format_pus(list)), list});
  return domains;
}

void bench_memory_matrix(Harness& harness, const platform::Topology& topology, const MeasureCell& measure) {
  if (!measure && !topology.is_this_machine)
    refuse("the topology is of another machine, whose cores and nodes cannot be bound",
           "without HWLOC_SYNTHETIC and HWLOC_XMLFILE in the environment");
  const size_t bytes = harness.cold_bytes() / platform::page_bytes() * platform::page_bytes();
  const auto measured = [&](const CoreDomain& d, const platform::MemoryNode& n) {
    return measure ? measure(d, n) : measure_here(d, n, bytes, harness.effort());
  };
  const std::vector<CoreDomain> domains = core_domains(topology);
  std::vector<platform::MemoryNode> nodes;
  for (const platform::MemoryNode& node : topology.memory)
    if (node.bytes > 0) nodes.push_back(node);
  if (nodes.empty()) refuse("hwloc shows no memory node", "lstopo shows what it sees");
  std::vector<MatrixCell> cells;
  for (const CoreDomain& d : domains)
    for (const platform::MemoryNode& n : nodes) {
      check_stop();
      const MatrixCell& cell = cells.emplace_back(measured(d, n));
      Row row{.name = fmt::format("{} x node {}", d.name, n.os), .dtype = "-"};
      row.share = std::numeric_limits<double>::quiet_NaN();
      row.gb_s = cell.read_gb_s;
      const double pass_s = double(bytes) / (cell.read_gb_s * 1e9);
      row.time = {pass_s, pass_s, pass_s, harness.effort().repeats};
      row.details = {{"domain", d.name, false},
                     {"node", int64_t(n.os), false},
                     {"memory", n.kind},
                     {"cores", int64_t(d.pus.size())},
                     {"latency_s", cell.latency_s}};
      harness.add(row);
    }
  harness.note(matrix_table("read, GB/s", domains, nodes, cells, [](const MatrixCell& c) { return c.read_gb_s; }));
  harness.note(
      matrix_table("latency, ns", domains, nodes, cells, [](const MatrixCell& c) { return c.latency_s * 1e9; }));
}

}  // namespace ditrain::bench
