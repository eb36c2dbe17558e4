#include "ditrain/platform/numa.hpp"

#include <numaif.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/platform/pages.hpp"
#include "ditrain/platform/topology.hpp"
#include "support/skip.hpp"

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

int mbind_refused_with = 0;

}  // namespace

// In the place of libnuma's.
extern "C" long mbind(void* data, unsigned long bytes, int mode, const unsigned long* nodes, unsigned long bits,
                      unsigned flags) {
  if (mbind_refused_with != 0) return errno = mbind_refused_with, -1;
  return syscall(SYS_mbind, data, bytes, mode, nodes, bits, flags);
}

TEST_CASE("pages inside the range get the policy, those that stick out do not") {
  const auto [policy, mode] = GENERATE(table<NodePolicy, int>({{NodePolicy::kBind, MPOL_BIND},
                                                               {NodePolicy::kPreferred, MPOL_PREFERRED},
                                                               {NodePolicy::kInterleave, MPOL_INTERLEAVE}}));
  Pages pages;
  const int node = probe_machine().memory.at(0).os;
  if (policy_at(pages.data) != MPOL_DEFAULT) SKIP("the system does not tell memory policies");
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
  if (nodes.empty()) SKIP("the system does not tell where pages are");
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

TEST_CASE("a refused placement says what would mend it") {
  Pages pages;
  const auto refusal = [&](int error) {
    mbind_refused_with = error;
    const NodeResult result = place_on_nodes(pages.data, kBytes, {0}, NodePolicy::kPreferred);
    mbind_refused_with = 0;
    CHECK(!result);
    return result.reason;
  };
  CHECK_THAT(refusal(EPERM),
             Catch::EndsWith("mbind: Operation not permitted; a container's seccomp profile that allows "
                             "it: docker run --cap-add=SYS_NICE"));
  CHECK_THAT(refusal(EINVAL), Catch::Contains("mbind: Invalid argument; the cpuset of the job or container must hold"));
  CHECK_THAT(refusal(EFAULT), Catch::EndsWith("mbind: Bad address"));
}

TEST_CASE("a range without a whole page is left alone") {
  Pages pages;
  CHECK(place_on_nodes(pages.data + 1, 100, {0}, NodePolicy::kBind));
  CHECK(place_on_nodes(pages.data, 0, {0}, NodePolicy::kBind));
  CHECK(policy_at(pages.data) != MPOL_BIND);
}

TEST_CASE("the free memory of a node is what is free, what files can give back, and its free huge pages") {
  const ditrain::TemporaryFolder root;
  const std::string node = root.path() + "/sys/devices/system/node/node3";
  std::filesystem::create_directories(node + "/hugepages/hugepages-2048kB");
  CHECK_FALSE(free_memory_on_node(3, root.path()));
  std::ofstream(node + "/meminfo") << "Node 3 MemTotal:       22374604 kB\nNode 3 MemFree:           1000 kB\n"
                                      "Node 3 Active(file):      200 kB\nNode 3 Inactive(file):     30 kB\n"
                                      "Node 3 Active(anon):        4 kB\nNode 3 HugePages_Free:      5\n";
  REQUIRE(free_memory_on_node(3, root.path()));
  CHECK(free_memory_on_node(3, root.path())->free_bytes == size_t{1000} << 10);
  CHECK(free_memory_on_node(3, root.path())->cached_bytes == size_t{230} << 10);
  CHECK(free_memory_on_node(3, root.path())->free_huge_bytes == 0);
  std::ofstream(node + "/hugepages/hugepages-2048kB/free_hugepages") << "7\n";
  CHECK(free_memory_on_node(3, root.path())->free_huge_bytes == 7 * kHugePageBytes);
  const int here = probe_machine().memory.at(0).os;
  if (const auto available = free_memory_on_node(here)) CHECK(available->free_bytes > 0);
  CHECK_FALSE(free_memory_on_node(4000));
}

TEST_CASE("bytes are counted by node, large ranges from one page in each 2 MiB") {
  const size_t bytes = GENERATE(size_t{1} << 20, size_t{64} << 20);
  auto* data = static_cast<char*>(map_pages(bytes));
  std::memset(data, 1, bytes / 2);
  const int here = probe_machine().memory.at(0).os;
  place_on_nodes(data, bytes, {here}, NodePolicy::kBind);
  const auto places = bytes_on_nodes(data, bytes);
  if (places.empty()) {
    WARN("left out: the system does not tell where pages are");
  } else {
    CHECK(places == std::map<int, size_t>{{-1, bytes / 2}, {here, bytes / 2}});
    CHECK_THAT(format_places(places), Catch::EndsWith(" not touched yet"));
  }
  unmap_pages(data, bytes);
  CHECK(format_places({{0, 3 << 20}, {2, 1 << 20}}) == "3.0 MiB on node 0, 1.0 MiB on node 2");
}
