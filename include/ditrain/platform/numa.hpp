// Which NUMA node the pages of a range of memory lie on. Without any of this a page lands near the thread that first
// writes it. Nodes are numbered as by the operating system (see MemoryNode).
#pragma once
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ditrain::platform {

enum class NodePolicy {
  kBind,        ///< on these nodes; when they are full the process is killed
  kPreferred,   ///< on the first of these nodes as long as it has free memory
  kInterleave,  ///< page after page on the next of these nodes
};
/// The policy for memory that all of these nodes have their part of.
inline NodePolicy policy_for(const std::vector<int>& nodes) {
  return nodes.size() > 1 ? NodePolicy::kInterleave : NodePolicy::kPreferred;
}

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

/// What a node has left now.
struct NodeFreeMemory {
  size_t free_bytes = 0;       ///< that nothing uses
  size_t cached_bytes = 0;     ///< of cached files, which can be dropped
  size_t free_huge_bytes = 0;  ///< reserved huge pages (2 MiB) that nothing uses
};
/// None if the system does not tell. Files are read below `root` ("" is the real system).
std::optional<NodeFreeMemory> free_memory_on_node(int node, const std::string& root = "");

/// What each of `sharers` has of it.
NodeFreeMemory operator/(const NodeFreeMemory& available, size_t sharers);

/// The node of every page that begins in [data, data + bytes), -1 for one that was never touched; empty if the system
/// does not tell. `data` must lie on a page border. `step`: looks only at a page in so many bytes; 0: at every page.
std::vector<int> nodes_of_pages(const void* data, size_t bytes, size_t step = 0);

/// Bytes of [data, data + bytes) by node, those never touched as node -1; empty if the system does not tell. For ranges
/// of 64 MiB and more it is an estimate, from one page in each 2 MiB. `data` must lie on a page border.
std::map<int, size_t> bytes_on_nodes(const void* data, size_t bytes);
/// The same as text: "1.5 GiB on node 0, 1.5 GiB on node 2, 512.0 MiB not touched yet".
std::string format_places(const std::map<int, size_t>& bytes_on_nodes);

}  // namespace ditrain::platform
