#include "ditrain/platform/numa.hpp"

#include <numaif.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <fstream>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/platform/pages.hpp"
#include "ditrain/platform/topology.hpp"

namespace ditrain::platform {
namespace {

constexpr int kMaxNodes = 1 << 12;  // Linux is built for at most 1024 (CONFIG_NODES_SHIFT)
constexpr size_t kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;

int mode_of(NodePolicy policy) {
  switch (policy) {
    case NodePolicy::kBind:
      return MPOL_BIND;
    case NodePolicy::kPreferred:
      return MPOL_PREFERRED;
    case NodePolicy::kInterleave:
      return MPOL_INTERLEAVE;
  }
  DITRAIN_CHECK(false, "unknown policy");
  return MPOL_DEFAULT;
}

// What would let pages be bound after such an error, as the end of a line.
const char* mend(int error) {
  switch (error) {
    case EPERM:
      return "; a container's seccomp profile that allows it: docker run --cap-add=SYS_NICE";
    case EINVAL:
      return "; the cpuset of the job or container must hold them (Mems_allowed_list in /proc/self/status)";
    default:
      return "";
  }
}

}  // namespace

NodeResult place_on_nodes(void* data, size_t bytes, const std::vector<int>& nodes, NodePolicy policy) {
  const uintptr_t page = page_bytes(), begin = (uintptr_t(data) + page - 1) / page * page;
  const uintptr_t end = (uintptr_t(data) + bytes) / page * page;
  if (nodes.empty()) return {false, "the set of NUMA nodes is empty"};
  std::vector<unsigned long> mask(kMaxNodes / kBitsPerWord);
  const size_t count = policy == NodePolicy::kPreferred ? 1 : nodes.size();
  for (size_t i = 0; i < count; ++i) {
    if (nodes[i] < 0 || nodes[i] >= kMaxNodes) return {false, "there is no NUMA node " + std::to_string(nodes[i])};
    mask[size_t(nodes[i]) / kBitsPerWord] |= 1UL << (size_t(nodes[i]) % kBitsPerWord);
  }
  if (begin >= end) return {true};
  const auto bind = [&](uintptr_t from, uintptr_t to) {
    // The kernel takes one bit less than it is told (man 2 mbind).
    return mbind(reinterpret_cast<void*>(from), to - from, mode_of(policy), mask.data(), kMaxNodes + 1, MPOL_MF_MOVE) ==
           0;
  };
  if (bind(begin, end)) return {true};
  const int error = errno;
  // Explicit huge pages are bound whole.
  const uintptr_t first = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uintptr_t last = end / kHugePageBytes * kHugePageBytes;
  if (error == EINVAL && first < last && (first != begin || last != end) && bind(first, last)) return {true};
  return {false, "memory is not placed on NUMA node(s) " + format_pus(nodes) + ": mbind: " + std::strerror(error) +
                     mend(error)};
}

std::optional<NodeFreeMemory> free_memory_on_node(int node, const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node/node" + std::to_string(node);
  std::ifstream in(folder + "/meminfo");  // "Node 0 MemFree:        14461208 kB"
  NodeFreeMemory available;
  bool found = false;
  for (std::string line; std::getline(in, line);) {
    char name[64] = {};
    unsigned long kib = 0;
    if (std::sscanf(line.c_str(), "Node %*d %63[^:]: %lu", name, &kib) != 2) continue;
    const std::string field = name;
    if (field == "MemFree") found = true, available.free_bytes = size_t(kib) << 10;
    if (field == "Active(file)" || field == "Inactive(file)") available.cached_bytes += size_t(kib) << 10;
  }
  if (!found) return {};
  size_t huge_pages = 0;
  if (std::ifstream huge(folder + "/hugepages/hugepages-2048kB/free_hugepages"); huge >> huge_pages)
    available.free_huge_bytes = huge_pages * kHugePageBytes;
  return available;
}

NodeFreeMemory operator/(const NodeFreeMemory& available, size_t sharers) {
  return {available.free_bytes / sharers, available.cached_bytes / sharers, available.free_huge_bytes / sharers};
}

std::vector<int> nodes_of_pages(const void* data, size_t bytes, size_t step) {
  const uintptr_t page = page_bytes();
  DITRAIN_CHECK(uintptr_t(data) % page == 0 && step % page == 0, "not on a page border");
  std::vector<void*> pages;
  for (uintptr_t p = uintptr_t(data); p < uintptr_t(data) + bytes; p += std::max<uintptr_t>(page, step))
    pages.push_back(reinterpret_cast<void*>(p));
  std::vector<int> nodes(pages.size());
  if (move_pages(0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0) return {};
  for (int& node : nodes) node = std::max(node, -1);  // a negative errno: never touched
  return nodes;
}

std::map<int, size_t> bytes_on_nodes(const void* data, size_t bytes) {
  const size_t step = bytes >= (size_t{64} << 20) ? kHugePageBytes : page_bytes();
  std::map<int, size_t> sums;
  size_t left = bytes;
  for (const int node : nodes_of_pages(data, bytes, step)) {
    const size_t part = std::min(step, left);
    sums[node] += part, left -= part;
  }
  return sums;
}

std::string format_places(const std::map<int, size_t>& bytes_on_nodes) {
  std::string text, untouched;
  for (const auto& [node, bytes] : bytes_on_nodes) {
    if (node < 0)
      untouched = format_bytes(bytes) + " not touched yet";
    else
      text += (text.empty() ? "" : ", ") + format_bytes(bytes) + " on node " + std::to_string(node);
  }
  return text + (text.empty() || untouched.empty() ? "" : ", ") + untouched;
}

}  // namespace ditrain::platform
