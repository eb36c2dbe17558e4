// Measures how fast each domain of cores reaches each memory node: bandwidth and latency, domains x nodes (the paper's
// table). Memory is bound to its node and threads to their cores, and their places are checked afterwards; a cell that
// fails the check has no number. A machine with one node has a matrix of one cell.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "ditrain/bench/harness.hpp"
#include "ditrain/platform/topology.hpp"

namespace ditrain::bench {

/// A group of cores that are near to the same memory.
struct CoreDomain {
  std::string name;      ///< "die 0, domain 1 (PU 14-27)"
  std::vector<int> pus;  ///< one hardware thread of each allowed core
};
/// The NUMA domains of the allowed cores, each split by dies, in machine order.
std::vector<CoreDomain> core_domains(const platform::Topology& topology);

struct MatrixCell {
  double read_gb_s = 0;  ///< all cores of the domain
  double latency_s = 0;  ///< of one load that depends on the previous one
};
using MeasureCell = std::function<MatrixCell(const CoreDomain&, const platform::MemoryNode&)>;

/// One row per cell.
/// Details   domain, node, memory (kind), cores, latency_s
/// Notes     two tables, of bandwidth and of latency
/// measure   measures one cell; empty: a real measurement on this machine
/// Errors:   InputError where threads or memory cannot be bound, a node has no free memory, or the topology is of
///           another machine
void bench_memory_matrix(Harness& harness, const platform::Topology& topology, const MeasureCell& measure = {});

}  // namespace ditrain::bench
