// Which NUMA node the pages of a range of memory lie on. Without any of this a page lands near the thread that first
// writes it. Nodes are numbered as by the operating system (see MemoryNode).
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace ditrain::platform {

enum class NodePolicy {
  kBind,        ///< on these nodes; when they are full the process is killed
  kPreferred,   ///< on the first of these nodes as long as it has room
  kInterleave,  ///< page after page on the next of these nodes
};

/// Whether the system agreed; `reason` tells why not.
struct NodeResult {
  bool placed = false;
  std::string reason = {};
  explicit operator bool() const { return placed; }
};

/// Asks that the whole pages inside [data, data + bytes) lie on `nodes`; pages that are in RAM already move there.
/// A range without a whole page is left alone and counts as placed. Never throws for a refusal (a node that does not
/// exist or that the cpuset of the job excludes, a sandbox): the caller goes on and logs it.
NodeResult place_on_nodes(void* data, size_t bytes, const std::vector<int>& nodes, NodePolicy policy);

/// The node of every page that begins in [data, data + bytes), -1 for one that was never touched; empty if the system
/// does not tell. `data` must lie on a page border.
std::vector<int> nodes_of_pages(const void* data, size_t bytes);

}  // namespace ditrain::platform
