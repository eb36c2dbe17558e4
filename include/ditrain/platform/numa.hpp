// Places the pages of a range of memory on NUMA nodes, and tells where they are. By default a page lands near the
// thread that first writes it (first touch). Nodes have the numbers of the operating system (see MemoryNode).
#pragma once
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ditrain::platform {

enum class NodePolicy {
  kBind,        ///< on these nodes only; when they are full the process is killed
  kPreferred,   ///< on the first of these nodes as long as it has free memory
  kInterleave,  ///< pages take turns on these nodes
};
/// The policy that spreads memory over all of `nodes`.
inline NodePolicy policy_for(const std::vector<int>& nodes) {
  return nodes.size() > 1 ? NodePolicy::kInterleave : NodePolicy::kPreferred;
}

/// Whether the system accepted the placement; `reason` says why not.
struct NodeResult {
  bool placed = false;
  std::string reason = {};
  explicit operator bool() const { return placed; }
};

/// Asks the system to put the whole pages inside [data, data + bytes) on `nodes`; pages that are already in RAM move
/// there. A range without a whole page is left alone and counts as placed. A refusal (a node that does not exist or
/// that the cpuset of the job excludes, a sandbox) does not throw: the caller continues and logs it.
NodeResult place_on_nodes(void* data, size_t bytes, const std::vector<int>& nodes, NodePolicy policy);

/// Free memory of a node at this moment.
struct NodeFreeMemory {
  size_t free_bytes = 0;       ///< unused
  size_t cached_bytes = 0;     ///< cached files, which can be dropped
  size_t free_huge_bytes = 0;  ///< unused pages in the pool of reserved huge pages (2 MiB)
};
/// Reads the free memory of a node; nullopt if the system does not report it. Files are read below `root` ("" is the
/// real system).
std::optional<NodeFreeMemory> free_memory_on_node(int node, const std::string& root = "");

/// The share of each of `sharers` processes.
NodeFreeMemory operator/(const NodeFreeMemory& available, size_t sharers);

/// The node of every page that begins in [data, data + bytes), -1 for a page that was never touched; empty if the
/// system does not report it. `data` must lie on a page border. With `step` > 0 it looks at one page per `step` bytes.
std::vector<int> nodes_of_pages(const void* data, size_t bytes, size_t step = 0);

/// Bytes of [data, data + bytes) on each node, untouched ones as node -1; empty if the system does not report it. From
/// 64 MiB on it is an estimate from one page per 2 MiB. `data` must lie on a page border.
std::map<int, size_t> bytes_on_nodes(const void* data, size_t bytes);
/// The same as text: "1.5 GiB on node 0, 1.5 GiB on node 2, 512.0 MiB not touched yet".
std::string format_places(const std::map<int, size_t>& bytes_on_nodes);

}  // namespace ditrain::platform
