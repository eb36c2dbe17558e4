#include "ditrain/platform/numa.hpp"

#include <numaif.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>

#include "ditrain/base/error.hpp"
#include "ditrain/platform/topology.hpp"

namespace ditrain::platform {
namespace {

constexpr int kMaxNodes = 1 << 12;  // Linux is built for at most 1024 (CONFIG_NODES_SHIFT)
constexpr size_t kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;

uintptr_t page_bytes() { return uintptr_t(sysconf(_SC_PAGESIZE)); }

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
  // The kernel takes one bit less than it is told (man 2 mbind).
  if (mbind(reinterpret_cast<void*>(begin), end - begin, mode_of(policy), mask.data(), kMaxNodes + 1, MPOL_MF_MOVE) ==
      0)
    return {true};
  return {false, "memory is not placed on NUMA node(s) " + format_pus(nodes) + ": mbind: " + std::strerror(errno)};
}

std::vector<int> nodes_of_pages(const void* data, size_t bytes) {
  const uintptr_t page = page_bytes();
  DITRAIN_CHECK(uintptr_t(data) % page == 0, "not on a page border");
  std::vector<void*> pages;
  for (uintptr_t p = uintptr_t(data); p < uintptr_t(data) + bytes; p += page)
    pages.push_back(reinterpret_cast<void*>(p));
  std::vector<int> nodes(pages.size());
  if (move_pages(0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0) return {};
  for (int& node : nodes) node = std::max(node, -1);  // a negative errno: never touched
  return nodes;
}

}  // namespace ditrain::platform
