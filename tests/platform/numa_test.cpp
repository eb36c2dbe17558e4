#include "ditrain/platform/numa.hpp"

#include <numaif.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "ditrain/platform/pages.hpp"
#include "ditrain/platform/topology.hpp"

using namespace ditrain::platform;

namespace {

constexpr size_t kBytes = 1 << 20;

/// Pages that are given back at the end.
struct Pages {
  char* data = static_cast<char*>(map_pages(kBytes));
  size_t page = size_t(sysconf(_SC_PAGESIZE));
  Pages() = default;
  ~Pages() { unmap_pages(data, kBytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
};

/// Policy of the page that holds `address`; -1 if the system does not tell.
int policy_at(void* address) {
  int mode = -1;
  return get_mempolicy(&mode, nullptr, 0, address, MPOL_F_ADDR) == 0 ? mode : -1;
}

}  // namespace

TEST_CASE("pages inside the range get the policy, those that stick out do not") {
  const auto [policy, mode] = GENERATE(table<NodePolicy, int>({{NodePolicy::kBind, MPOL_BIND},
                                                               {NodePolicy::kPreferred, MPOL_PREFERRED},
                                                               {NodePolicy::kInterleave, MPOL_INTERLEAVE}}));
  Pages pages;
  const int node = probe_machine().memory.at(0).os;
  if (policy_at(pages.data) != MPOL_DEFAULT) {
    WARN("skipped: the system does not tell memory policies");
    return;
  }
  const NodeResult result = place_on_nodes(pages.data + 1, 4 * pages.page, {node}, policy);
  INFO(result.reason);
  REQUIRE(result);
  CHECK(policy_at(pages.data) == MPOL_DEFAULT);
  for (const size_t inside : {1, 3}) CHECK(policy_at(pages.data + inside * pages.page) == mode);
  CHECK(policy_at(pages.data + 4 * pages.page) == MPOL_DEFAULT);
}

TEST_CASE("touched pages are on a node of this machine, the others nowhere yet") {
  Pages pages;
  std::memset(pages.data, 1, 2 * pages.page);
  const int node = probe_machine().memory.at(0).os;
  CHECK(place_on_nodes(pages.data, kBytes, {node}, NodePolicy::kBind));
  const std::vector<int> nodes = nodes_of_pages(pages.data, 4 * pages.page - 1);
  if (nodes.empty()) {
    WARN("skipped: the system does not tell where pages are");
    return;
  }
  CHECK(nodes == std::vector<int>{node, node, -1, -1});
  CHECK((pages.data[0] == 1 && pages.data[2 * pages.page - 1] == 1));
}

TEST_CASE("what cannot be placed is told, not fatal") {
  Pages pages;
  CHECK_THAT(place_on_nodes(pages.data, kBytes, {}, NodePolicy::kBind).reason, Catch::Contains("empty"));
  for (const int node : {-1, 1 << 20})
    CHECK_THAT(place_on_nodes(pages.data, kBytes, {node}, NodePolicy::kBind).reason, Catch::Contains("no NUMA node"));
  const NodeResult absent = place_on_nodes(pages.data, kBytes, {4000}, NodePolicy::kInterleave);
  CHECK(!absent);
  CHECK_THAT(absent.reason, Catch::Contains("NUMA node(s) 4000: mbind: "));
  std::memset(pages.data, 1, kBytes);  // and the memory is as good as before
}

TEST_CASE("a range without a whole page is left alone") {
  Pages pages;
  CHECK(place_on_nodes(pages.data + 1, 100, {0}, NodePolicy::kBind));
  CHECK(place_on_nodes(pages.data, 0, {0}, NodePolicy::kBind));
  CHECK(policy_at(pages.data) != MPOL_BIND);
}
