// Shares of clusters in the fast tier: which page belongs to whom, and that pages are there, where a node is real.
#include "ditrain/memory/fast_pool.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/platform/numa.hpp"
#include "ditrain/platform/topology.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using namespace ditrain::memory;

namespace {

constexpr size_t kPage = platform::kHugePageBytes;

// The nodes of the pages of a tensor, each its middle.
std::vector<int> nodes_of(size_t offset, size_t bytes, const std::vector<ClusterShare>& clusters) {
  std::vector<int> nodes;
  for (size_t page = offset / kPage * kPage; page < offset + bytes; page += kPage)
    nodes.push_back(clusters[cluster_of_page(page, kPage, offset, bytes, clusters)].node);
  return nodes;
}

int real_node() { return platform::probe_machine().memory.at(0).os; }

}  // namespace

TEST_CASE("what clusters divide is cut in their order, by their workers") {
  const std::vector<ClusterShare> socket = {{9, 14}, {11, 14}, {13, 14}, {15, 14}};  // HBM of a Xeon Max
  CHECK(nodes_of(0, 8 * kPage, socket) == std::vector<int>{9, 9, 11, 11, 13, 13, 15, 15});
  CHECK(nodes_of(3 * kPage, 4 * kPage, socket) == std::vector<int>{9, 11, 13, 15});
  CHECK(nodes_of(kPage / 2, 4 * kPage, socket) == std::vector<int>{9, 11, 13, 15, 15});  // its pages are cut off
  CHECK(nodes_of(5 * kPage + 4096, 8192, socket) == std::vector<int>{13});  // smaller than a page: one has it
  CHECK(nodes_of(0, 8 * kPage, {{1, 2}, {3, 6}}) == std::vector<int>{1, 1, 3, 3, 3, 3, 3, 3});
  CHECK(nodes_of(kPage, 2 * kPage, {{7, 5}}) == std::vector<int>{7, 7});
}

TEST_CASE("the peak is the most that lay in the tier at one time, in the pool and beside it") {
  FastPool pool({.bytes = 4 * kPage, .pages = platform::PagePolicy::kPlain});
  pool.place(0, 2 * kPage, /*divided=*/false);
  pool.release(2 * kPage);
  CHECK(pool.peak_bytes() == 2 * kPage);
  Allocator& beside = pool.beside(system_memory());
  const size_t of_system = system_memory().bytes_in_use();
  void* const block = beside.allocate(kPage);
  CHECK(system_memory().bytes_in_use() == of_system + kPage);
  CHECK(pool.beside_bytes() == kPage);
  CHECK(pool.peak_bytes() == 2 * kPage);
  pool.place(0, 3 * kPage, /*divided=*/false);
  CHECK(pool.peak_bytes() == 4 * kPage);
  beside.deallocate(block, kPage);
  CHECK(pool.beside_bytes() == 0);
  pool.place(3 * kPage, kPage, /*divided=*/false);
  CHECK(pool.peak_bytes() == 4 * kPage);
}

TEST_CASE("a pool on one node lies there, and says so") {
  const int node = real_node();
  FastPool pool({.bytes = 4 * kPage, .pages = platform::PagePolicy::kPlain, .clusters = {{node, 1}, {node, 1}}});
  pool.place(0, 2 * kPage, /*divided=*/true);
  std::memset(pool.data(), 1, 2 * kPage);
  if (!pool.notes().empty() || pool.describe_places().empty()) SKIP("the system binds no memory here");
  CHECK(pool.describe_places() == "4.0 MiB on node " + std::to_string(node) +
                                      ", 4.0 MiB not touched yet; 2 of 2 huge-page ranges are where they were bound");
}

TEST_CASE("a node that is not there is told once, and the pool serves as before") {
  const int node = real_node(), absent = 4000;
  FastPool pool({.bytes = 4 * kPage, .pages = platform::PagePolicy::kPlain, .clusters = {{node, 1}, {absent, 1}}});
  for (int times = 0; times < 2; ++times) pool.place(0, 4 * kPage, /*divided=*/true);
  pool.place(0, 4 * kPage, /*divided=*/false);
  REQUIRE(pool.notes().size() == 1);
  CHECK_THAT(pool.notes()[0], Catch::Contains("NUMA node(s) "));
  std::memset(pool.data(), 1, pool.bytes());
  const std::string places = pool.describe_places();
  if (places.find("bound") != places.npos)
    CHECK_THAT(places, Catch::EndsWith("2 of 2 huge-page ranges are where they were bound"));
}

TEST_CASE("a pool over several nodes: what is divided lies cut by cut, what all read is spread over all of them") {
  using platform::NodePolicy;
  struct Asked {
    size_t first, pages;
    std::vector<int> nodes;
    NodePolicy policy;
    bool operator==(const Asked&) const = default;
  };
  std::vector<Asked> asked;
  const std::byte* base = nullptr;
  const auto place = [&](void* data, size_t bytes, const std::vector<int>& nodes, NodePolicy policy) {
    if (base == nullptr) base = static_cast<std::byte*>(data);
    asked.push_back({size_t(static_cast<std::byte*>(data) - base) / kPage, bytes / kPage, nodes, policy});
    return platform::NodeResult{.placed = true};
  };
  std::vector<int> found = {5, 5, 7, 7, 5, 7, 5, 7};
  FastPool pool({.bytes = 8 * kPage, .pages = platform::PagePolicy::kPlain, .clusters = {{5, 1}, {7, 1}}},
                {.place_on_nodes = place, .nodes_of_pages = [&](const void*, size_t, size_t) { return found; }});
  CHECK(asked.back() == Asked{0, 8, {5, 7}, NodePolicy::kInterleave});  // as a try, before anything has a place
  asked.clear();
  pool.place(0, 4 * kPage, /*divided=*/true);
  pool.place(3 * kPage, 4 * kPage, /*divided=*/false);  // its first page is bound already
  CHECK(asked == std::vector<Asked>{{0, 2, {5}, NodePolicy::kPreferred},
                                    {2, 2, {7}, NodePolicy::kPreferred},
                                    {4, 3, {5, 7}, NodePolicy::kInterleave}});
  CHECK_THAT(pool.describe_places(), Catch::EndsWith("7 of 7 huge-page ranges are where they were bound"));
  found[0] = 7, found[4] = 6;  // of the other cluster; of no cluster
  CHECK_THAT(pool.describe_places(), Catch::EndsWith("5 of 7 huge-page ranges are where they were bound"));
  CHECK(pool.notes().empty());
}

TEST_CASE("a node without free memory is told before anything is bound, with what would mend it") {
  const TemporaryFolder root;
  const auto note_with = [&](int free_mib, int cached_mib, size_t ranks = 1) {
    const std::string node = root.path() + "/sys/devices/system/node/node3";
    std::filesystem::create_directories(node);
    std::ofstream(node + "/meminfo") << "Node 3 MemFree: " << free_mib * 1024
                                     << " kB\nNode 3 Inactive(file): " << cached_mib * 1024 << " kB\n";
    const FastPool pool({.bytes = size_t{100} << 20,
                         .pages = platform::PagePolicy::kPlain,
                         .clusters = {{3, 1}},
                         .beside_bytes = size_t{10} << 20,
                         .free_memory = {{3, *platform::free_memory_on_node(3, root.path()) / ranks}}});
    return pool.notes().empty() ? "" : pool.notes()[0];
  };
  CHECK_THAT(note_with(200, 0), !Catch::Contains("free for this rank where"));
  CHECK_THAT(note_with(222, 0, /*ranks=*/2), !Catch::Contains("free for this rank where"));
  CHECK_THAT(note_with(210, 0, /*ranks=*/2), Catch::Contains("has 105.0 MiB free for this rank where 110.0 MiB are"));
  CHECK(note_with(40, 80) ==
        "fast tier: NUMA node 3 has 40.0 MiB free for this rank where 110.0 MiB are wanted, the rest comes from other "
        "nodes; sysctl vm.drop_caches=1 (as root) frees 80.0 MiB of cached files");
  CHECK_THAT(note_with(40, 10), Catch::EndsWith("from other nodes; --set memory.fast_gib=0.05 fits"));
}
