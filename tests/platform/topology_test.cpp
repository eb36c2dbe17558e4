#include "ditrain/platform/topology.hpp"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <thread>

#include "ditrain/base/error.hpp"
#include "ditrain/platform/affinity.hpp"
#include "support/skip.hpp"
#include "synthetic.hpp"

using namespace ditrain;
using namespace ditrain::platform;

namespace {

void check_matches_mask(const Topology& t) {
  std::vector<int> sorted = t.allowed_pus;
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted == affinity_mask());
  CHECK(t.allowed_domains.size() == t.allowed_pus.size());
  CHECK(t.allowed_cores >= 1);
  CHECK(t.allowed_cores <= int(t.allowed_pus.size()));
}

}  // namespace

TEST_CASE("the topology of this machine holds together") {
  const Topology t = probe_topology();
  check_matches_mask(t);
  CHECK(t.packages >= 1);
  CHECK(t.numa_domains >= 1);
  CHECK(t.cores >= t.packages);
  CHECK(t.pus >= t.cores);
  CHECK(t.allowed_cores <= t.cores);
  for (const int domain : t.allowed_domains) CHECK((domain >= 0 && domain < t.numa_domains));
}

TEST_CASE("the topology respects the affinity mask") {
  const std::vector<int> mask = affinity_mask();
  Topology t;
  std::thread([&] {
    REQUIRE(bind_this_thread(mask.back()));
    t = probe_topology();
  }).join();
  CHECK(t.allowed_pus == std::vector<int>{mask.back()});
  CHECK(t.allowed_cores == 1);
}

TEST_CASE("a synthetic machine is described and its missing or foreign PUs do no harm") {
  const std::vector<int> mask = affinity_mask();
  SECTION("larger than this one") {
    const ScopedVariable synthetic("HWLOC_SYNTHETIC", "package:2 numa:2 l3:1(size=33554432) core:4 pu:2");
    const Topology t = probe_topology();
    CHECK(t.packages == 2);
    CHECK(t.numa_domains == 4);
    CHECK(t.cores == 16);
    CHECK(t.pus == 32);
    CHECK(t.l3_bytes == size_t{32} << 20);
    check_matches_mask(t);
  }
  SECTION("a socket without memory: nothing is bound to its node") {
    const ScopedVariable synthetic("HWLOC_SYNTHETIC", "pack:2 [numa(memory=0)] [numa(memory=8GB)] core:4 pu:1");
    const Topology t = probe_topology();
    REQUIRE(t.memory.size() == 2);
    for (const MemoryNode& node : t.memory) CHECK(node.bytes > 0);
    for (const Domain& domain : t.domains)
      CHECK(std::any_of(t.memory.begin(), t.memory.end(),
                        [&](const MemoryNode& node) { return node.os == domain.bulk_node; }));
  }
  SECTION("a socket whose only node has no memory: its domain has that of the other one") {
    const Topology t = with_empty_first_node("pack:2 [numa(memory=8GB)] core:4 pu:1");
    REQUIRE(t.memory.size() == 1);
    REQUIRE(t.domains.size() == 2);
    for (const Domain& domain : t.domains) {
      CHECK(domain.bulk_node == t.memory.front().os);
      CHECK(domain.fast_node == -1);
    }
    CHECK(t.units.front().domain != t.units.back().domain);
  }
  SECTION("smaller than this one: PUs that it lacks count as cores of their own") {
    const ScopedVariable synthetic("HWLOC_SYNTHETIC", "core:1 pu:1(indexes=4000)");
    const Topology t = probe_topology();
    CHECK(t.pus == 1);
    check_matches_mask(t);
    CHECK(t.allowed_cores == int(mask.size()));
  }
  SECTION("nonsense is an error or ignored by hwloc, never a crash") {
    const ScopedVariable xml("HWLOC_XMLFILE", "/nonexistent/topology.xml");
    try {
      check_matches_mask(probe_topology());
    } catch (const RunError& error) {
      CHECK_THAT(error.what(), Catch::Contains("HWLOC_XMLFILE"));
    }
  }
}

TEST_CASE("one PU per core comes first") {
  const std::vector<int> mask = affinity_mask();
  if (mask.size() < 2 || mask[0] != 0 || mask[1] != 1) SKIP("needs PUs 0 and 1");
  Topology siblings, separate;
  std::thread([&] {
    REQUIRE(set_affinity_mask({0, 1}));
    {
      const ScopedVariable synthetic("HWLOC_SYNTHETIC", "core:8 pu:2");
      siblings = probe_topology();
    }
    const ScopedVariable synthetic("HWLOC_SYNTHETIC", "numa:2 core:1 pu:2(indexes=1,3,0,2)");
    separate = probe_topology();
  }).join();
  CHECK(siblings.allowed_cores == 1);
  CHECK(siblings.allowed_pus == std::vector<int>{0, 1});
  CHECK(separate.allowed_cores == 2);
  CHECK(separate.allowed_pus == std::vector<int>{0, 1});
  CHECK(separate.allowed_domains == std::vector<int>{0, 1});
}

TEST_CASE("the description names what was found") {
  Topology t;
  t.machine = "node7", t.cpu_model = "Fast CPU", t.packages = 2, t.numa_domains = 4, t.cores = 64, t.pus = 128;
  t.allowed_pus = {0, 2, 1, 8}, t.allowed_cores = 3, t.l1d_bytes = 32 << 10, t.l2_bytes = 1 << 20;
  const std::string text = describe(t);
  CHECK_THAT(text, Catch::Contains("node7") && Catch::Contains("Fast CPU") && Catch::Contains("NUMA domains 4"));
  CHECK_THAT(text, Catch::Contains("L1d 32 KiB, L2 1 MiB, L3 unknown"));
  CHECK_THAT(text, Catch::Contains("cores 3 of 64, hardware threads 4 (0-2,8)"));
  CHECK_THAT(text, Catch::Contains("memory:    unknown"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 6);
}

TEST_CASE("dies, caches and domains of a node as the paper's") {
  const Topology t = synthetic_machine(kLx2);
  CHECK(!t.is_this_machine);
  CHECK((t.packages == 2 && t.dies == 4 && t.numa_domains == 16 && t.cores == 608 && t.l2_caches == 16 &&
         t.l3_caches == 0));
  REQUIRE(t.units.size() == 608);
  const Pu& pu = t.units[5 * 38 + 7];
  CHECK((pu.core == 5 * 38 + 7 && pu.l2 == 5 && pu.l3 == -1 && pu.domain == 5 && pu.die == 1 && pu.package == 0));
  CHECK((t.units.back().die == 3 && t.units.back().package == 1 && t.units.back().domain == 15));
  CHECK(t.allowed_cores == 608);
}

TEST_CASE("a domain is the smallest set of cores with memory of its own") {
  const Topology t = synthetic_machine(kLx2TwoTiers);
  CHECK((t.dies == 4 && t.numa_domains == 16));
  REQUIRE(t.memory.size() == 20);
  std::set<size_t> spans;
  for (const MemoryNode& node : t.memory) spans.insert(node.domains.size());
  CHECK(spans == std::set<size_t>{1, 4});
  CHECK(t.units[38].domain == 1);
}

TEST_CASE("memory on the package is told apart by name or by bandwidth") {
  const bool named = GENERATE(true, false);
  const Topology t = xeon_max(named);
  CHECK((t.numa_domains == 8 && t.cores == 112 && t.pus == 224));
  REQUIRE(t.memory.size() == 16);
  REQUIRE(t.domains.size() == 8);
  for (int i = 0; i < 8; ++i) {
    const Domain& domain = t.domains[size_t(i)];
    CHECK((domain.bulk_node == 2 * i && domain.fast_node == 2 * i + 1));
    CHECK(t.memory[size_t(2 * i)].kind == "DRAM");
    CHECK(t.memory[size_t(2 * i + 1)].kind == "HBM");
    CHECK(t.memory[size_t(2 * i + 1)].bytes == size_t{16} << 30);
    CHECK(t.memory[size_t(2 * i + 1)].domains == std::vector<int>{i});
  }
  CHECK_THAT(describe(t), Catch::Contains("memory:    8 x DRAM 64 GiB, 8 x HBM 16 GiB"));
}

TEST_CASE("a second node that is hardly faster is no fast memory") {
  const Topology t = xeon_max(false, 90000);
  CHECK(t.domains.front().fast_node == -1);
  CHECK(t.memory[1].kind == "DRAM");
}

TEST_CASE("masks: part of a domain, hardware threads of one core, foreign ones") {
  const Topology machine = synthetic_machine(kEpycNps1);  // PUs 2c and 2c+1 are core c
  const Topology t = with_mask(machine, {1, 0, 4, 130, 9999});
  CHECK(t.allowed_pus == std::vector<int>{0, 4, 130, 9999, 1});
  CHECK(t.allowed_cores == 4);
  CHECK(t.allowed_domains == std::vector<int>{0, 0, 1, 0, 0});
  CHECK(t.allowed[2].l3 == 8);
  CHECK(with_mask(t, {3}).allowed_pus == std::vector<int>{3});
}

TEST_CASE("PU lists print as ranges") {
  CHECK(format_pus({}) == "");
  CHECK(format_pus({3}) == "3");
  CHECK(format_pus({5, 0, 1, 2, 8, 7}) == "0-2,5,7-8");
  CHECK(format_pus({3, 3, 4, 3}) == "3-4");
  CHECK(format_pus({0, 2, 4, 6, 7, 9}) == "0-6:2,7,9");
}
