#include "ditrain/parallel/core_plan.hpp"

#include <catch2/catch.hpp>
#include <set>

#include "ditrain/base/error.hpp"
#include "platform/synthetic.hpp"
#include "support/message_of.hpp"

using namespace ditrain;
using namespace ditrain::parallel;
using ditrain::test::message_of;
using platform::Pu;
using platform::synthetic_machine;
using platform::Topology;

namespace {

using Sizes = std::vector<int>;

std::vector<int> run_of(int first, int count, int step = 1) {
  std::vector<int> pus;
  for (int i = 0; i < count; ++i) pus.push_back(first + i * step);
  return pus;
}

std::vector<int> numbers(const std::vector<Pu>& pus) {
  std::vector<int> out;
  for (const Pu& pu : pus) out.push_back(pu.os);
  return out;
}

/// Values of a member over the workers of each cluster.
std::vector<std::set<int>> by_cluster(const CorePlan& plan, int Pu::*member) {
  std::vector<std::set<int>> out;
  auto worker = plan.workers.begin();
  for (const int size : plan.cluster_sizes) {
    out.emplace_back();
    for (int i = 0; i < size; ++i) out.back().insert((*worker++).*member);
  }
  return out;
}

/// No worker has a core of another, all are in the mask, and counts agree.
void check_sound(const CorePlan& plan, const Topology& t, bool smt = false) {
  std::set<int> mask(t.allowed_pus.begin(), t.allowed_pus.end()), seen_pus, seen_cores;
  for (const Pu& pu : plan.workers) {
    CHECK(mask.count(pu.os) == 1);
    CHECK(seen_pus.insert(pu.os).second);
    CHECK((seen_cores.insert(pu.core).second || smt));
  }
  for (const auto* aside : {&plan.comm, &plan.copy, &plan.unused})
    for (const Pu& pu : *aside) {
      CHECK(mask.count(pu.os) == 1);
      CHECK(seen_cores.insert(pu.core).second);
    }
  CHECK(int(plan.workers.size()) == plan.num_workers());
  CHECK(plan.domain_of.size() == plan.cluster_sizes.size());
}

std::string error_of(const Topology& t, const CoreRequest& request) {
  return message_of([&] { plan_cores(t, request); });
}

}  // namespace

TEST_CASE("the paper's die: four clusters of 38, one core for messages and one for copies") {
  const Topology node = synthetic_machine(platform::kLx2);
  const int die = GENERATE(0, 3);
  const Topology t = with_mask(node, run_of(152 * die, 152));
  const CorePlan plan = plan_cores(t, {.budget = 152});
  check_sound(plan, t);
  CHECK(plan.cluster_sizes == Sizes{38, 38, 37, 37});
  CHECK(plan.clusters_from == "NUMA domains");
  CHECK(numbers(plan.comm) == Sizes{152 * die + 151});
  CHECK(numbers(plan.copy) == Sizes{152 * die + 113});
  CHECK(plan.unused.empty());
  CHECK(plan.notes.empty());
  CHECK(by_cluster(plan, &Pu::domain) ==
        std::vector<std::set<int>>{{4 * die}, {4 * die + 1}, {4 * die + 2}, {4 * die + 3}});
  CHECK(by_cluster(plan, &Pu::l2) == by_cluster(plan, &Pu::domain));
  CHECK(plan.domain_of[2].bulk_node == 4 * die + 2);
}

TEST_CASE("ranks that share the mask of a node get a die each") {
  const Topology t = synthetic_machine(platform::kLx2TwoTiers);
  for (int rank = 0; rank < 4; ++rank) {
    const CorePlan plan = plan_cores(t, {.budget = 152, .ranks_on_mask = 4, .rank_on_mask = rank});
    check_sound(plan, t);
    CHECK(plan.cluster_sizes == Sizes{38, 38, 37, 37});
    for (const Pu& pu : plan.workers) CHECK(pu.die == rank);
    CHECK(plan.comm.front().die == rank);
  }
}

TEST_CASE("cores that do not divide over the ranks of a mask are unused ones of the last rank") {
  const Topology t = synthetic_machine("package:1 [numa] core:8 pu:2");
  for (const int rank : {0, 1, 2}) {
    const CorePlan plan = plan_cores(t, {.budget = 2, .ranks_on_mask = 3, .rank_on_mask = rank});
    check_sound(plan, t);
    CHECK(numbers(plan.workers) == Sizes{4 * rank, 4 * rank + 2});
    CHECK(numbers(plan.unused) == (rank == 2 ? Sizes{12, 14} : Sizes{}));
  }
}

TEST_CASE("dual EPYC: clusters are domains of the node, L3 caches inside a domain") {
  const Topology nps1 = synthetic_machine(platform::kEpycNps1), nps4 = synthetic_machine(platform::kEpycNps4);
  SECTION("a rank on the node: one cluster per socket, one worker per core") {
    const CorePlan plan = plan_cores(nps1, {.budget = 128});
    check_sound(plan, nps1);
    CHECK(plan.cluster_sizes == Sizes{63, 63});
    CHECK(plan.comm.front().package == 1);
    CHECK(plan.copy.front().package == 0);
  }
  SECTION("a rank on a socket without domains: one cluster per L3 cache") {
    const Topology socket = with_mask(nps1, run_of(128, 128));
    const CorePlan plan = plan_cores(socket, {.budget = 64});
    check_sound(plan, socket);
    CHECK(plan.cluster_sizes == Sizes{8, 8, 8, 8, 8, 8, 7, 7});
    CHECK(plan.clusters_from == "L3 caches");
    for (const std::set<int>& caches : by_cluster(plan, &Pu::l3)) CHECK(caches.size() == 1);
  }
  SECTION("a rank on a socket of four domains") {
    const Topology socket = with_mask(nps4, run_of(0, 128));
    CHECK(plan_cores(socket, {.budget = 64}).cluster_sizes == Sizes{16, 16, 15, 15});
  }
  SECTION("a rank on one of four domains: two L3 caches") {
    const Topology domain = with_mask(nps4, run_of(32, 32));
    const CorePlan plan = plan_cores(domain, {.budget = 16, .comm_cores = 2, .copy_cores = 0});
    check_sound(plan, domain);
    CHECK(plan.cluster_sizes == Sizes{7, 7});
    CHECK(plan.comm.size() == 2);
    CHECK(plan.copy.empty());
    CHECK(plan.clusters_from == "L3 caches");
  }
  SECTION("half an L3 cache more makes no clusters") {
    const Topology part = with_mask(nps4, run_of(32, 24));
    const CorePlan plan = plan_cores(part, {.budget = 12, .comm_cores = 0, .copy_cores = 0});
    CHECK(plan.cluster_sizes == Sizes{12});
    CHECK_THAT(plan.clusters_from, Catch::Contains("unequal"));
  }
}

TEST_CASE("Xeon Max: a cluster knows its DRAM and its HBM") {
  const Topology machine = platform::xeon_max(true);
  const Topology socket = with_mask(machine, run_of(112, 112));
  const CorePlan plan = plan_cores(socket, {.budget = 56});
  check_sound(plan, socket);
  CHECK(plan.cluster_sizes == Sizes{14, 14, 13, 13});
  for (size_t i = 0; i < 4; ++i) {
    CHECK(plan.domain_of[i].bulk_node == int(8 + 2 * i));
    CHECK(plan.domain_of[i].fast_node == int(9 + 2 * i));
  }
}

TEST_CASE("a laptop: everything is shared") {
  const Topology t = synthetic_machine(platform::kLaptop);
  const CorePlan plan = plan_cores(t, {.budget = 2});
  check_sound(plan, t);
  CHECK(plan.cluster_sizes == Sizes{2});
  CHECK((plan.comm.empty() && plan.copy.empty() && plan.unused.empty() && plan.notes.empty()));
  CHECK(plan_cores(t, {.budget = 2, .clusters = 2}).cluster_sizes == Sizes{1, 1});
  CHECK(plan_cores(t, {.budget = 2, .comm_cores = 1}).cluster_sizes == Sizes{1});
  CHECK(plan_cores(t, {.budget = 1}).unused.size() == 1);
}

TEST_CASE("caches of single cores make no clusters") {
  const Topology t = synthetic_machine("package:1 [numa] l3:4(size=16777216) core:1 pu:1");  // as virtual machines show
  CHECK(plan_cores(t, {.budget = 4}).cluster_sizes == Sizes{4});
  CHECK(plan_cores(t, {.budget = 4, .clusters = 4}).cluster_sizes == Sizes{1, 1, 1, 1});
}

TEST_CASE("cores are set aside from eight per rank on, and explicit threads come first") {
  const Topology t = synthetic_machine("package:1 [numa] core:9 pu:1");
  const auto counts = [&](CoreRequest r) {
    const CorePlan plan = plan_cores(t, r);
    check_sound(plan, t);
    return Sizes{plan.num_workers(), int(plan.comm.size()), int(plan.copy.size()), int(plan.unused.size())};
  };
  CHECK(counts({.budget = 9}) == Sizes{7, 1, 1, 0});
  CHECK(counts({.budget = 8}) == Sizes{6, 1, 1, 1});
  CHECK(counts({.budget = 7}) == Sizes{7, 0, 0, 2});
  CHECK(counts({.budget = 9, .comm_cores = 0}) == Sizes{8, 0, 1, 0});
  CHECK(counts({.budget = 9, .comm_cores = 3, .copy_cores = 2}) == Sizes{4, 3, 2, 0});
  CHECK(counts({.budget = 9, .comm_cores = 8, .copy_cores = 0}) == Sizes{1, 8, 0, 0});
  CHECK(counts({.threads = 9}) == Sizes{9, 0, 0, 0});
  CHECK(counts({.threads = 8}) == Sizes{8, 1, 0, 0});
  CHECK(counts({.threads = 7}) == Sizes{7, 1, 1, 0});
  CHECK(counts({.threads = 4}) == Sizes{4, 1, 1, 3});
  CHECK(counts({.threads = 8, .comm_cores = 1}) == Sizes{8, 1, 0, 0});
}

TEST_CASE("hardware threads of a core: one worker, or all on request") {
  const Topology t = synthetic_machine("package:1 numa:2 core:5 pu:2");
  const CorePlan one = plan_cores(t, {.budget = 10});
  check_sound(one, t);
  CHECK(one.cluster_sizes == Sizes{4, 4});
  for (const Pu& pu : one.workers) CHECK(pu.os % 2 == 0);
  const CorePlan all = plan_cores(t, {.budget = 20, .smt = true});
  check_sound(all, t, true);
  CHECK(all.cluster_sizes == Sizes{8, 8});
  CHECK(all.comm.size() == 1);
  CHECK(plan_cores(t, {.threads = 3, .smt = true}).cluster_sizes == Sizes{3});
  CHECK(plan_cores(t, {.threads = 2, .clusters = 2, .comm_cores = 0, .copy_cores = 0, .smt = true}).cluster_sizes ==
        Sizes{1, 1});
}

TEST_CASE("clusters of hardware threads are as many as wanted, and unequal ones are noted") {
  const Topology three = synthetic_machine("package:1 [numa] core:3 pu:2");
  const auto of_three = [&](int threads, int clusters) {
    const CorePlan plan =
        plan_cores(three, {.threads = threads, .clusters = clusters, .comm_cores = 0, .copy_cores = 0, .smt = true});
    check_sound(plan, three, true);
    return plan.cluster_sizes;
  };
  CHECK(of_three(5, 5) == Sizes(5, 1));
  CHECK(of_three(6, 6) == Sizes(6, 1));
  CHECK(of_three(6, 3) == Sizes(3, 2));
  // Of three cores in one half the mask has only one thread.
  const Sizes mask = {0, 1, 2, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15};
  const auto of_mask = [&](const char* machine) {
    return plan_cores(with_mask(synthetic_machine(machine), mask),
                      {.budget = 13, .comm_cores = 0, .copy_cores = 0, .smt = true});
  };
  const CorePlan domains = of_mask("package:1 numa:2 core:4 pu:2");
  CHECK(domains.cluster_sizes == Sizes{5, 8});
  REQUIRE(domains.notes.size() == 1);
  CHECK_THAT(domains.notes[0], Catch::Contains("5 to 8 hardware threads") && Catch::Contains("NUMA domains"));
  CHECK(of_mask("package:1 [numa] l3:2(size=33554432) core:4 pu:2").cluster_sizes == Sizes{13});
  // A core set aside is no reason for a note.
  const Topology two = synthetic_machine("package:1 numa:2 core:5 pu:2");
  const CorePlan aside = plan_cores(two, {.budget = 20, .comm_cores = 1, .copy_cores = 0, .smt = true});
  CHECK(aside.cluster_sizes == Sizes{10, 8});
  CHECK(aside.notes.empty());
}

TEST_CASE("a mask that cuts a domain in part gives unequal clusters and says so") {
  const Topology node = synthetic_machine(platform::kLx2);
  const Topology t = with_mask(node, run_of(30, 12));
  const CorePlan plan = plan_cores(t, {.budget = 12, .comm_cores = 0, .copy_cores = 0});
  check_sound(plan, t);
  CHECK(plan.cluster_sizes == Sizes{8, 4});
  REQUIRE(plan.notes.size() == 1);
  CHECK_THAT(plan.notes[0], Catch::Contains("4 to 8 cores"));
  // Cores set aside come from the larger cluster.
  CHECK(plan_cores(t, {.budget = 12, .comm_cores = 2, .copy_cores = 2}).cluster_sizes == Sizes{4, 4});
}

TEST_CASE("a number of clusters: domains or caches if it fits, else runs of cores") {
  const Topology t = with_mask(synthetic_machine(platform::kEpycNps4), run_of(0, 128));  // 4 domains, 8 caches
  const auto plan = [&](int clusters, int aside = 0) {
    CorePlan p = plan_cores(t, {.budget = 64, .clusters = clusters, .comm_cores = aside, .copy_cores = 0});
    check_sound(p, t);
    return p;
  };
  CHECK(plan(1).cluster_sizes == Sizes{64});
  CHECK(plan(4, 1).cluster_sizes == Sizes{16, 16, 16, 15});
  CHECK(plan(4).clusters_from == "parallel.clusters, NUMA domains");
  CHECK(plan(8, 2).cluster_sizes == Sizes{8, 8, 8, 8, 8, 8, 7, 7});
  CHECK(plan(8).clusters_from == "parallel.clusters, L3 caches");
  CHECK(plan(2).notes.empty());
  CHECK(plan(16).notes.empty());
  CHECK(plan(4, 1).notes.empty());
  const Topology three_domains = with_mask(t, run_of(0, 96));
  const auto of_three = [&](int clusters) {
    return plan_cores(three_domains, {.budget = 48, .clusters = clusters, .comm_cores = 0, .copy_cores = 0});
  };
  CHECK(of_three(2).cluster_sizes == Sizes{24, 24});
  CHECK(of_three(2).notes.empty());  // fewer clusters than domains must span some
  const CorePlan four = of_three(4);
  CHECK(four.cluster_sizes == Sizes{12, 12, 12, 12});
  REQUIRE(four.notes.size() == 2);
  CHECK_THAT(four.notes[0], Catch::Contains("cluster 1 spans 2 NUMA domains"));
}

TEST_CASE("a number of clusters has to divide the workers, unless a core that is set aside is what they lack") {
  const Topology t = synthetic_machine("package:1 [numa] core:9 pu:1");
  CHECK(error_of(t, {.budget = 8, .clusters = 3, .comm_cores = 0, .copy_cores = 0}) ==
        "[placement] parallel.clusters does not divide the workers: the smaller clusters would rule; got 3 for 8 "
        "worker(s), expected a divisor; try parallel.clusters: 2 or auto, or parallel.threads: 6");
  const auto sizes = [&](const CoreRequest& request) { return plan_cores(t, request).cluster_sizes; };
  CHECK(sizes({.budget = 9, .clusters = 3}) == Sizes{3, 2, 2});  // two cores set aside
  CHECK(sizes({.budget = 9, .clusters = 3, .comm_cores = 1, .copy_cores = 0}) == Sizes{3, 3, 2});
  CHECK(plan_cores(t, {.budget = 9, .clusters = 3}).notes.empty());
  CHECK(sizes({.budget = 9, .clusters = 7}) == Sizes(7, 1));
  CHECK_THAT(error_of(t, {.budget = 9, .clusters = 4}), Catch::Contains("got 4 for 7 worker(s)"));
  // Cores set aside lie beside workers that were asked for.
  CHECK_THAT(error_of(t, {.threads = 8, .clusters = 3}), Catch::Contains("got 3 for 8 worker(s)"));
  CHECK_THAT(error_of(t, {.threads = 7, .clusters = 3}), Catch::Contains("parallel.threads: 6"));
  CHECK_THAT(error_of(t, {.threads = 20, .clusters = 3}), Catch::Contains("got 3 for 20 worker(s)"));  // not bound
}

TEST_CASE("wanted clusters that follow unequal parts of the machine are noted as such") {
  Topology t = synthetic_machine(platform::kLx2);
  std::vector<int> pus;
  for (int pu = 30; pu < 42; ++pu) pus.push_back(pu);  // 8 cores of a NUMA domain, 4 of the next
  const CorePlan plan = plan_cores(with_mask(t, pus), {.budget = 12, .clusters = 2, .comm_cores = 0, .copy_cores = 0});
  CHECK(plan.cluster_sizes == Sizes{8, 4});
  REQUIRE(plan.notes.size() == 1);
  CHECK_THAT(plan.notes[0], Catch::Contains("parallel.clusters: 2 follows unequal parts of the machine"));
}

TEST_CASE("more threads than cores: not bound, clusters are numbers of threads") {
  const Topology t = synthetic_machine(platform::kLaptop);
  const CorePlan plan = plan_cores(t, {.threads = 6, .clusters = 2});
  CHECK(plan.workers.empty());
  CHECK(plan.cluster_sizes == Sizes{3, 3});
  REQUIRE(plan.notes.size() == 1);
  CHECK_THAT(plan.notes[0], Catch::Contains("6 threads of 1 rank(s) share 2 core(s): workers are not pinned"));
  CHECK(plan.team().pus.empty());
  const CorePlan crowded = plan_cores(t, {.budget = 1, .ranks_on_mask = 3, .rank_on_mask = 2});
  CHECK((crowded.workers.empty() && crowded.num_workers() == 1));
  CHECK_THAT(crowded.notes.at(0), Catch::Contains("3 threads of 3 rank(s) share 2 core(s)"));
  // Each of two ranks has as many threads as the mask has cores.
  CHECK(plan_cores(t, {.threads = 2, .ranks_on_mask = 2}).team().spin_pauses == Team::kFewPauses);
  CHECK(plan_cores(t, {.threads = 2}).team().spin_pauses == Team::kAuto);
}

TEST_CASE("masks that overlap in part: not bound, for another rank may have the same cores") {
  const Topology t = synthetic_machine("package:1 numa:2 core:8 pu:1");
  for (const int rank : {0, 1}) {
    const CorePlan plan =
        plan_cores(t, {.budget = 8, .comm_cores = 1, .ranks_on_mask = 2, .rank_on_mask = rank, .equal_masks = false});
    CHECK((plan.workers.empty() && plan.comm.empty() && plan.copy.empty()));
    CHECK(plan.cluster_sizes == Sizes{8});
    REQUIRE(plan.notes.size() == 1);
    CHECK_THAT(plan.notes[0], Catch::Contains("masks of 2 ranks overlap in part: workers are not pinned"));
    CHECK(plan.team().spin_pauses == Team::kFewPauses);
  }
}

TEST_CASE("plans that cannot be are errors that name the way out") {
  const Topology t = synthetic_machine(platform::kLaptop);
  CHECK(error_of(t, {.budget = 2, .clusters = 3}) ==
        "[placement] parallel.clusters; got 3, expected at most the number of threads, 2; try parallel.clusters: auto");
  CHECK(error_of(t, {.budget = 2, .clusters = 2, .comm_cores = 1}).find("at most the number of threads, 1") !=
        std::string::npos);
  CHECK(error_of(t, {.budget = 2, .comm_cores = 2}) ==
        "[placement] parallel.comm_cores and memory.copy_cores set aside more cores than a rank can spare; got 2 "
        "core(s) set aside, expected fewer than the 2 core(s) of this rank; try parallel.comm_cores: auto and "
        "memory.copy_cores: auto, or more cores per rank");
  CHECK(error_of(t, {.budget = 2, .comm_cores = 1, .copy_cores = 1}).find("got 2 core(s)") != std::string::npos);
  CHECK(error_of(t, {.threads = 2, .comm_cores = 1})
            .find("got 1 core(s) set aside beside 2 worker(s), expected at "
                  "most the 2 core(s) of this rank") != std::string::npos);
  CHECK(error_of(t, {.threads = 5, .comm_cores = 1}).find("beside 5 worker(s)") != std::string::npos);
  CHECK(error_of(t, {.budget = 1, .comm_cores = 1, .ranks_on_mask = 3}).find("the 0 core(s)") != std::string::npos);
  CHECK_THROWS_AS(plan_cores(t, {.budget = 2, .ranks_on_mask = 2, .rank_on_mask = 2}), LogicFault);
  CHECK_THROWS_AS(plan_cores(with_mask(t, {}), {.budget = 2}), LogicFault);
}

TEST_CASE("the team of a plan") {
  const Topology t = with_mask(synthetic_machine(platform::kLx2), run_of(30, 12));
  const Team::Config config = plan_cores(t, {.budget = 12, .comm_cores = 1, .copy_cores = 0}).team();
  CHECK((config.num_workers == 11 && config.num_clusters == 2));
  CHECK(config.cluster_sizes == Sizes{7, 4});
  CHECK(config.pus == Sizes{30, 31, 32, 33, 34, 35, 36, 38, 39, 40, 41});
}

TEST_CASE("the map says which worker has which core") {
  const Topology t = with_mask(synthetic_machine(platform::kEpycNps4), run_of(128, 64));
  const std::vector<MapRow> rows = map_of(plan_cores(t, {.budget = 31}));
  REQUIRE(rows.size() == 5);
  const auto text = [](const MapRow& r) {
    return r.role + "|" + r.threads + "|" + r.pus + "|" + r.cores + "|" + r.l2 + "|" + r.l3 + "|" + r.numa + "|" +
           r.die + "|" + r.package;
  };
  CHECK(text(rows[0]) == "cluster 0|15|128-156:2|64-78|-|8-9|4|1|1");
  CHECK(text(rows[2]) == "communication|1|158|79|-|9|4|1|1");
  CHECK(text(rows[3]) == "copies|1|188|94|-|11|5|1|1");
  CHECK(text(rows[4]) == "unused|1|190|95|-|11|5|1|1");
  CHECK(text(map_of(plan_cores(t, {.threads = 99})).at(0)) == "cluster 0|99|any|any|-|-|-|-|-");
}
