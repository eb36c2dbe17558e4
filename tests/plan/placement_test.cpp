#include "ditrain/plan/placement.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "dist/thread_world.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/base/temporary_folder.hpp"
#include "ditrain/plan/run_plan.hpp"
#include "ditrain/platform/affinity.hpp"
#include "platform/synthetic.hpp"
#include "support/message_of.hpp"
#include "support/skip.hpp"

using namespace ditrain;
using Catch::Contains;
using ditrain::test::message_of;
using platform::ScopedVariable;
using platform::synthetic_machine;

namespace {

using Sizes = std::vector<int>;

constexpr auto kTiers = config::AutoMem::kPlanned;

std::string error_of(const config::Config& config) {
  return message_of([&] { plan::plan_placement(config, *dist::make_null_communicator()); });
}

/// The lines of a text that begin with `word`.
std::vector<std::string> lines_of(const std::string& text, const std::string& word) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    const std::string line = text.substr(begin, end - begin);
    const size_t first = line.find_first_not_of(' ');
    if (first != line.npos && line.compare(first, word.size(), word) == 0) lines.push_back(line);
  }
  return lines;
}

}  // namespace

TEST_CASE("this machine: threads, cores and the map agree with the mask") {
  const auto comm = dist::make_null_communicator();
  const plan::Placement p = plan::plan_placement(config::Config{}, *comm);
  CHECK(p.threads == p.team().num_workers);
  CHECK(p.pus == p.team().pus);
  CHECK(p.threads <= p.topology.allowed_cores);
  CHECK(p.comm_pus.empty());  // a single rank does not communicate
  CHECK(p.copy_pus.empty());
  const std::string text = describe(p, *comm);
  CHECK_THAT(text,
             Contains("ranks: 1 on 1 node(s)") && Contains("threads: " + std::to_string(p.threads) + " per rank"));
  CHECK_THAT(text, Contains("communication: shares the cores of the workers (one rank)"));
  CHECK_THAT(text, Contains("copies: shares the cores of the workers (memory.automem: off)"));
  CHECK(lines_of(text, "0     cluster").size() == size_t(p.clusters));
}

TEST_CASE("a pretended machine gets this process' mask") {
  const std::vector<int> mask = platform::affinity_mask();
  if (mask.size() < 2 || mask[0] != 0 || mask[1] != 1) SKIP("needs PUs 0 and 1");
  plan::Placement p;
  std::thread([&] {
    REQUIRE(platform::set_affinity_mask({0, 1}));
    const ScopedVariable synthetic("HWLOC_SYNTHETIC", "package:2 numa:2 core:2 pu:1(indexes=0,2,1,3,4,5,6,7)");
    p = plan::plan_placement(config::Config{}, *dist::make_null_communicator());
  }).join();
  CHECK((p.threads == 2 && p.clusters == 2));
  CHECK(p.pus == Sizes{0, 1});
  CHECK(p.plan.clusters_from == "NUMA domains");
  CHECK_THAT(p.map, Contains("0     cluster 1  1        1   2     -   -   1     0    0"));
}

TEST_CASE("a run that leaves cores of the machine idle says how a second one gets them") {
  const std::vector<int> mask = platform::affinity_mask();
  if (mask.size() < 2 || mask[0] != 0 || mask[1] != 1) SKIP("needs PUs 0 and 1");
  const auto line = [](int64_t threads, const std::vector<int>& allowed) {
    config::Config config;
    config.parallel.threads = threads;
    plan::Placement p;
    std::thread([&] {
      if (!platform::set_affinity_mask(allowed)) return;
      const ScopedVariable synthetic("HWLOC_SYNTHETIC", "package:1 [numa] core:2 pu:1");
      p = plan::plan_placement(config, *dist::make_null_communicator());
    }).join();
    CHECK(p.threads == threads);
    return p.second_run;
  };
  CHECK(line(1, {0, 1}) ==
        "workers are pinned to PU(s) 0 of 2; a second run here would take the same: for others, taskset -c 1 ...");
  {
    const ScopedVariable launched("PMI_SIZE", "1");  // by mpirun -np 1 --bind-to none
    CHECK_FALSE(line(1, {0, 1}).empty());
  }
  CHECK(line(2, {0, 1}).empty());
  CHECK(line(1, {0}).empty());  // somebody placed it
}

TEST_CASE("ranks whose masks overlap in part are pinned to no core that another has") {
  const std::vector<int> mask = platform::affinity_mask();
  if (mask.size() < 2 || mask[0] != 0 || mask[1] != 1) SKIP("needs PUs 0 and 1");
  const ScopedVariable synthetic("HWLOC_SYNTHETIC", "package:1 [numa] core:2 pu:1");
  const auto placements = [](const std::vector<std::vector<int>>& masks) {
    std::vector<plan::Placement> all(masks.size());
    ThreadWorld world{.ranks = int(masks.size()), .ranks_per_node = int(masks.size())};
    run_ranks(world, [&](ThreadCommunicator& comm) {
      if (!platform::set_affinity_mask(masks[size_t(comm.rank())])) throw std::runtime_error("no mask");
      all[size_t(comm.rank())] = plan::plan_placement(config::Config{}, comm);
    });
    return all;
  };
  for (const plan::Placement& p : placements({{0}, {0, 1}})) {
    CHECK((p.pus.empty() && p.threads == 1));
    CHECK_THAT(p.notes.at(0), Contains("the affinity masks of 2 ranks overlap in part"));
  }
  const auto equal = placements({{0, 1}, {0, 1}});
  CHECK((equal[0].pus == Sizes{0} && equal[1].pus == Sizes{1}));
}

TEST_CASE("OMP_NUM_THREADS and SLURM_CPUS_PER_TASK limit a rank, and the report says which did") {
  const platform::Topology node = synthetic_machine(platform::kLx2);
  const ScopedVariable omp("OMP_NUM_THREADS", "40");
  const plan::DryRunRanks s = plan::dry_run_ranks(config::Config{}, node, 4);
  CHECK(s.on_node[0].threads == 39);  // and a core to communicate
  CHECK_THAT(describe(s, node, 4),
             Contains("threads: 39 per rank in 2 cluster(s) (NUMA domains), set by OMP_NUM_THREADS"));
  const ScopedVariable slurm("SLURM_CPUS_PER_TASK", "7");
  CHECK(plan::dry_run_ranks(config::Config{}, node, 4).on_node[0].threads == 7);
  CHECK(plan::dry_run_ranks(config::Config{}, node, 4).on_node[0].ruled_by == "SLURM_CPUS_PER_TASK");
}

TEST_CASE("OMP_NUM_THREADS that leaves most of a rank's cores idle is noted") {
  const platform::Topology node = synthetic_machine(platform::kEpycNps1);  // 128 cores of two hardware threads
  config::Config config;
  const auto notes = [&](const char* threads) {
    const ScopedVariable omp("OMP_NUM_THREADS", threads);
    return plan::dry_run_ranks(config, node, 2).on_node[1].notes;
  };
  CHECK(notes("32").empty());
  REQUIRE(notes("1").size() == 1);
  CHECK(notes("1")[0] ==
        "OMP_NUM_THREADS=1 leaves 63 of the 64 core(s) of this rank idle; unset it, or set parallel.threads");
  CHECK_THAT(notes("31,2").at(0), Contains("OMP_NUM_THREADS=31 leaves 33 of the 64 core(s)"));
  {
    const ScopedVariable omp("OMP_NUM_THREADS", "4"), slurm("SLURM_CPUS_PER_TASK", "4");
    CHECK(plan::dry_run_ranks(config, node, 2).on_node[0].notes.empty());  // the allocation has no more
  }
  {
    const ScopedVariable omp("OMP_NUM_THREADS", "4"), slurm("SLURM_CPUS_PER_TASK", "8");
    CHECK(plan::dry_run_ranks(config, node, 2).on_node[0].notes.empty());  // half of what there is
  }
  config.parallel.smt = true;
  CHECK(notes("64").empty());
  CHECK_THAT(notes("61").at(0), Contains("OMP_NUM_THREADS=61 leaves 33 of the 64 core(s)"));
  config.parallel.smt = false, config.parallel.threads = 1;
  CHECK(notes("1").empty());
}

TEST_CASE("ranks of a dry run: one per die where that fills nodes") {
  const platform::Topology node = synthetic_machine(platform::kLx2);
  config::Config config;
  config.memory.copy_cores = 1, config.memory.automem = kTiers;
  const plan::DryRunRanks s = plan::dry_run_ranks(config, node, 8);
  CHECK((s.nodes == 2 && s.per_node == 4 && s.one_per_die));
  REQUIRE(s.on_node.size() == 4);
  for (int rank = 0; rank < 4; ++rank) {
    const plan::Placement& p = s.on_node[size_t(rank)];
    CHECK((p.threads == 150 && p.clusters == 4));
    CHECK(p.team().cluster_sizes == Sizes{38, 38, 37, 37});
    CHECK(p.comm_pus == Sizes{152 * rank + 151});
    CHECK(p.copy_pus == Sizes{152 * rank + 113});
    CHECK(p.pus.front() == 152 * rank);
    CHECK(p.ruled_by == "affinity mask");
  }
  const std::string text = describe(s, node, 8);
  CHECK_THAT(text, Contains("ranks: 8 on 2 node(s), 4 per node, assumed to have one die each"));
  CHECK_THAT(text, Contains("mpirun -np 8 --map-by ppr:4:node:PE=152 --bind-to core ditrain"));
  CHECK_THAT(
      text,
      Contains("srun --nodes=2 --ntasks=8 --ntasks-per-node=4 --cpus-per-task=152 --cpu-bind=cores --wait=20 ditrain"));
  CHECK(lines_of(text, "2     ").size() == 6);  // four clusters, communication, copies
  CHECK(lines_of(text, "3     cluster 2").at(0) ==
        "  3     cluster 2      37       532-568  532-568  14  -   14    3    1");
  CHECK(lines_of(text, "3     communication").at(0) ==
        "  3     communication  1        607      607      15  -   15    3    1");
}

TEST_CASE("ranks of a dry run: equal shares, and more nodes where cores do not suffice") {
  const platform::Topology node = synthetic_machine(platform::kEpycNps1);
  const auto assume = [&](int ranks) { return plan::dry_run_ranks(config::Config{}, node, ranks); };
  const plan::DryRunRanks one = assume(1);
  CHECK((one.nodes == 1 && one.per_node == 1 && !one.one_per_die));
  CHECK((one.on_node[0].threads == 128 && one.on_node[0].clusters == 2));
  CHECK((assume(2).nodes == 1 && assume(2).one_per_die && assume(4).nodes == 2));
  const plan::DryRunRanks three = assume(3);
  CHECK((three.nodes == 1 && three.per_node == 3 && !three.one_per_die));
  CHECK(three.on_node[2].pus.front() == 2 * 84);
  CHECK(three.on_node[0].threads == 41);  // 42 cores, one to communicate
  const plan::DryRunRanks many = assume(129);
  CHECK((many.nodes == 65 && many.per_node == 2 && many.one_per_die));
  CHECK_THAT(describe(three, node, 3),
             Contains("--map-by ppr:3:node:PE=42") && Contains("--cpus-per-task=84 ") && Contains("equal shares"));

  const platform::Topology laptop = synthetic_machine(platform::kLaptop);
  CHECK(plan::dry_run_ranks(config::Config{}, laptop, 2).on_node[1].pus == Sizes{1});
  CHECK(plan::dry_run_ranks(config::Config{}, laptop, 4).nodes == 4);
}

TEST_CASE("ranks of a dry run: root is told the variables without which Open MPI refuses it") {
  const platform::Topology laptop = synthetic_machine(platform::kLaptop);
  const auto launch = [&] {
    return lines_of(describe(plan::dry_run_ranks(config::Config{}, laptop, 2), laptop, 2), "launch: ").at(0);
  };
  {
    const ScopedVariable allow("OMPI_ALLOW_RUN_AS_ROOT", "1"), confirm("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    CHECK_THAT(launch(), Catch::StartsWith("launch: mpirun -np 2 "));
  }  // and gone
  const std::string variables = geteuid() == 0 ? "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " : "";
  CHECK_THAT(launch(), Catch::StartsWith("launch: " + variables + "mpirun -np 2 "));
}

TEST_CASE("ranks of a dry run: Slurm says how many a node gets") {
  const platform::Topology laptop = synthetic_machine("package:1 [numa] core:16 pu:1");
  CHECK((plan::dry_run_ranks(config::Config{}, laptop, 16).nodes == 1));
  {
    const ScopedVariable tasks("SLURM_NTASKS_PER_NODE", "1");
    const plan::DryRunRanks s = plan::dry_run_ranks(config::Config{}, laptop, 16);
    CHECK((s.nodes == 16 && s.per_node == 1 && !s.one_per_die));
    CHECK(s.on_node[0].threads == 15);  // and a core to communicate
    const std::string text = describe(s, laptop, 16);
    CHECK_THAT(
        text, Contains("ranks: 16 on 16 node(s), 1 per node (SLURM_NTASKS_PER_NODE), assumed to have all its cores\n"));
    CHECK_THAT(text, Contains("srun --nodes=16 --ntasks=16 --ntasks-per-node=1 --cpus-per-task=16 "));
    const ScopedVariable nodes("SLURM_NNODES", "2");  // fewer than that makes: the ranks asked for count
    CHECK(plan::dry_run_ranks(config::Config{}, laptop, 16).nodes == 16);
  }
  const platform::Topology node = synthetic_machine(platform::kLx2);
  const auto by_nodes = [&](const char* nodes, int ranks) {
    const ScopedVariable variable("SLURM_NNODES", nodes);
    return plan::dry_run_ranks(config::Config{}, node, ranks);
  };
  const plan::DryRunRanks two = by_nodes("2", 8), uneven = by_nodes("3", 7), one = by_nodes("1", 8),
                          many = by_nodes("8", 3);
  CHECK((two.nodes == 2 && two.per_node == 4 && two.one_per_die && two.per_node_from == "SLURM_NNODES"));
  CHECK((uneven.nodes == 3 && uneven.per_node == 3 && !uneven.one_per_die));
  CHECK(uneven.on_node[2].pus.front() == 2 * 202);
  CHECK((one.nodes == 2 && one.one_per_die && one.per_node_from.empty()));
  CHECK((many.nodes == 3 && many.per_node == 1));
}

TEST_CASE("dp and dp_tp have one cluster per rank, and a rank on the cores of several is told how to have more") {
  const platform::Topology node = synthetic_machine(platform::kLx2);
  config::Config config;
  config.parallel.strategy = GENERATE(config::Strategy::kDp, config::Strategy::kDpTp);
  config.parallel.comm_cores = 0;
  const plan::Placement die = plan::dry_run_ranks(config, node, 4).on_node[0];
  CHECK((die.threads == 152 && die.clusters == 1));
  CHECK(die.plan.clusters_from == fmt::format("parallel.strategy: {}, one per rank", config.parallel.strategy));
  REQUIRE(die.notes.size() == 1);
  CHECK_THAT(die.notes[0], Contains("the cores of this rank hold 4 clusters; for a rank on each: ") &&
                               Contains("mpirun -np 16 --map-by slot:PE=38 --bind-to core"));
  CHECK(plan::dry_run_ranks(config, node, 16).on_node[0].clusters == 1);
  config::Config threads = config;  // mpirun counts cores, of which a worker of smt has half
  threads.parallel.smt = true;
  const auto both = plan::dry_run_ranks(threads, synthetic_machine("pack:2 [numa] core:9 pu:2"), 1).on_node[0];
  REQUIRE_FALSE(both.notes.empty());
  CHECK_THAT(both.notes[0], Contains("mpirun -np 2 --map-by slot:PE=9 --bind-to core"));
  config.parallel.strategy = config::Strategy::kCftp;
  CHECK(plan::dry_run_ranks(config, node, 4).on_node[0].notes.empty());
}

TEST_CASE("two hardware threads per core on request") {
  const platform::Topology node = synthetic_machine(platform::kEpycNps1);
  config::Config config;
  config.parallel.smt = true, config.parallel.comm_cores = 2;
  const plan::DryRunRanks s = plan::dry_run_ranks(config, node, 2);
  CHECK(s.on_node[0].threads == 124);
  CHECK(s.on_node[0].comm_pus.size() == 2);
}

TEST_CASE("helper threads get what neither another rank has nor is set aside") {
  const platform::Topology node = synthetic_machine("package:1 [numa] core:32 pu:2");
  const ScopedVariable omp("OMP_NUM_THREADS", "10");
  config::Config config;
  config.memory.copy_cores = 1, config.memory.automem = kTiers;
  const plan::Placement p = plan::dry_run_ranks(config, node, 2).on_node[1];  // of cores 16 to 31, 6 without work
  CHECK((p.threads == 8 && p.comm_pus == Sizes{50} && p.copy_pus == Sizes{48}));
  CHECK(platform::format_pus(p.helper_pus) == "32-47,52-63");
  config.memory.copy_cores = 0, config.parallel.threads = 40;  // more than its cores: workers are not bound either
  CHECK(plan::dry_run_ranks(config, node, 1).on_node[0].helper_pus.size() == 64);
}

TEST_CASE("copies between tiers take no core while nothing copies") {
  const platform::Topology node = synthetic_machine(platform::kLx2);
  config::Config config;
  const plan::Placement automatic = plan::dry_run_ranks(config, node, 4).on_node[0];
  CHECK(automatic.notes.empty());
  config.memory.copy_cores = 1;
  const plan::Placement p = plan::dry_run_ranks(config, node, 4).on_node[0];
  CHECK((p.threads == 151 && p.copy_pus.empty() && p.pus == automatic.pus));
  REQUIRE(p.notes.size() == 1);
  CHECK_THAT(p.notes[0], Contains("memory.copy_cores: 1 has no effect: with memory.automem: off"));
}

TEST_CASE("impossible placements are errors that name the way out") {
  config::Config config;
  config.parallel.comm_cores = 4000;
  CHECK_THAT(error_of(config),
             Contains("[placement] parallel.comm_cores") && Contains("try parallel.comm_cores: auto"));
  config.parallel.comm_cores = 0, config.memory.copy_cores = 4000, config.memory.automem = kTiers;
  CHECK_THAT(error_of(config), Contains("memory.copy_cores") && Contains("got 4000 core(s)"));
  config.memory.copy_cores = 0, config.parallel.clusters = 4000;
  CHECK_THAT(error_of(config), Contains("[placement] parallel.clusters; got 4000, expected at most the number of"));
}

TEST_CASE("the free memory of a node is divided by the ranks that use it") {
  const platform::Topology machine = platform::xeon_max(/*named=*/true);
  const TemporaryFolder root;
  for (int node = 0; node < 16; ++node) {
    const std::string folder = root.path() + "/sys/devices/system/node/node" + std::to_string(node);
    std::filesystem::create_directories(folder + "/hugepages/hugepages-2048kB");
    std::ofstream(folder + "/meminfo") << "Node " << node << " MemFree: " << 6000 + node << " kB\nNode " << node
                                       << " Inactive(file): 600 kB\n";
    std::ofstream(folder + "/hugepages/hugepages-2048kB/free_hugepages") << 12;
  }
  // Ranks 0 and 1 share the first domain, rank 2 has two of its own; rank 3 is on another machine.
  const std::vector<std::vector<size_t>> domains = {{0}, {0, 1}, {2, 3}, {0}};
  ThreadWorld world{.ranks = 4, .ranks_per_node = 3};
  std::vector<std::map<int, platform::NodeFreeMemory>> free_memory(4);
  run_ranks(world, [&](ThreadCommunicator& comm) {
    parallel::CorePlan plan;
    for (const size_t d : domains[size_t(comm.rank())]) plan.domain_of.push_back(machine.domains[d]);
    free_memory[size_t(comm.rank())] = plan::free_memory_of_rank(plan, comm, root.path());
  });
  const auto free_kib = [&](int rank) {
    std::map<int, size_t> kib;
    for (const auto& [node, available] : free_memory[size_t(rank)]) kib[node] = available.free_bytes >> 10;
    return kib;
  };
  using Kib = std::map<int, size_t>;
  CHECK(free_kib(0) == Kib{{0, 3000}, {1, 3000}});
  CHECK(free_kib(1) == Kib{{0, 3000}, {1, 3000}, {2, 6002}, {3, 6003}});
  CHECK(free_kib(2) == Kib{{4, 6004}, {5, 6005}, {6, 6006}, {7, 6007}});
  CHECK(free_kib(3) == Kib{{0, 6000}, {1, 6001}});
  CHECK(free_memory[0][1].cached_bytes == size_t{300} << 10);
  CHECK(free_memory[0][1].free_huge_bytes == 6 * platform::kHugePageBytes);
}

TEST_CASE("memory on the package is the fast tier of the ranks beside it, and the plan keeps to it") {
  plan::Placement p;
  p.topology = platform::xeon_max(/*named=*/true);
  const auto rank_on = [&](const std::vector<size_t>& domains) {
    p.plan.domain_of.clear(), p.plan.cluster_sizes.clear();
    for (const size_t d : domains)
      p.plan.domain_of.push_back(p.topology.domains[d]), p.plan.cluster_sizes.push_back(14);
    return plan::place_of(p, int(8 / domains.size()));
  };
  const plan::RankPlace socket = rank_on({4, 5, 6, 7}), domain = rank_on({3});
  CHECK((socket.fast_nodes == std::vector<int>{9, 11, 13, 15} && socket.nodes == std::vector<int>{8, 10, 12, 14}));
  CHECK(socket.fast_bytes == size_t{64} << 30);
  CHECK(socket.bulk_nodes == socket.nodes);
  CHECK(rank_on({3, 3}).fast_bytes == size_t{16} << 30);  // two clusters in one domain
  p.sharers = {{7, 2}};
  CHECK(rank_on({3}).fast_bytes == size_t{8} << 30);
  CHECK(rank_on({4}).fast_bytes == size_t{16} << 30);
  p.sharers.clear();
  const auto shares = plan::fast_shares(socket);
  REQUIRE(shares.size() == 4);
  for (size_t c = 0; c < 4; ++c) CHECK((shares[c].node == int(9 + 2 * c) && shares[c].workers == 14));
  REQUIRE(plan::fast_shares(domain).size() == 1);  // of one cluster, but beside other memory
  CHECK(plan::fast_shares(domain)[0].node == 7);
  CHECK((domain.fast_nodes == std::vector<int>{7} && domain.bulk_nodes == std::vector<int>{6} &&
         domain.fast_bytes == size_t{16} << 30));
  config::Config c;
  c.model.name = "DiT-XL/2";
  nn::apply_name(c.model);
  c.memory.automem = kTiers;
  c.train.global_batch = 64;
  const auto large = plan::plan_run(c, 1, socket), small = plan::plan_run(c, 1, domain);
  const auto capacity = [](const plan::RunPlan& plan) {
    return plan.automem->capacity.fixed_bytes + plan.automem->capacity.pool_bytes;
  };
  CHECK(capacity(large) <= socket.fast_bytes);
  CHECK(large.automem->forecast.bytes_in == 0);  // all of it has room
  CHECK(capacity(small) <= domain.fast_bytes);
  CHECK(small.automem->uses.total_bytes() > domain.fast_bytes);
  CHECK(small.automem->forecast.peak_bytes <= small.automem->capacity.pool_bytes);
  CHECK((small.automem->forecast.bytes_in > 0 || small.automem->in_place_bytes() > 0));
  CHECK(small.automem->tier_bytes[memory::tier("disk")] == 0);
}

TEST_CASE("a die with one node of DDR and memory on the package in each cluster: what moves has both, in one plan") {
  plan::Placement p;
  p.topology = platform::with_package_memory(platform::kLx2TwoTiers, /*named=*/true);
  REQUIRE(p.topology.domains.size() == 16);
  p.plan.domain_of.assign(p.topology.domains.begin() + 4, p.topology.domains.begin() + 8);  // the second die
  p.plan.cluster_sizes.assign(4, 38);
  const plan::RankPlace die = plan::place_of(p, 4);
  CHECK(die.bulk_nodes.size() == 1);
  CHECK(plan::distinct_fast_nodes(die).size() == 4);
  CHECK(std::count(die.fast_nodes.begin(), die.fast_nodes.end(), die.bulk_nodes[0]) == 0);
  CHECK(die.fast_bytes == size_t{64} << 30);
  const auto shares = plan::fast_shares(die);
  REQUIRE(shares.size() == 4);
  for (size_t c = 0; c < 4; ++c) CHECK((shares[c].node == die.fast_nodes[c] && shares[c].workers == 38));
  CHECK(plan::nodes_of_fixed(die, /*move=*/true) == plan::distinct_fast_nodes(die));

  config::Config c;
  c.model.name = "DiT-XL/2";
  nn::apply_name(c.model);
  c.memory.automem = kTiers;
  c.memory.fast_gib = 12;
  c.train.global_batch = 64;
  plan::RankPlace place = die;
  place.copying = plan::plan_copying(c, p, die, "", nullptr);
  const plan::RunPlan plan = plan::plan_run(c, 1, place);
  CHECK(plan.automem->capacity.fixed_bytes + plan.automem->capacity.pool_bytes <= size_t{12} << 30);
  CHECK(plan.automem->uses.total_bytes() > size_t{12} << 30);
  CHECK(plan.automem->forecast.peak_bytes <= plan.automem->capacity.pool_bytes);
  // What is used in place costs what the slower memory takes longer, in a plan that measures nothing, too.
  CHECK(plan.automem->machine.in_place_bytes_s > 0);
  CHECK((plan.automem->forecast.bytes_in > 0 || plan.automem->in_place_bytes() > 0));
  double all_fast_s = 0;
  for (const double s : plan.automem->machine.point_s) all_fast_s += s;
  CHECK(plan.automem->forecast.step_s > all_fast_s);
  CHECK_THAT(describe(*plan.automem), Contains("assumed each way, as a plan alone measures nothing: bulk 6.0 GB/s\n"));
}

TEST_CASE("without memory on the package a cluster's share of the fast tier is its DRAM, where there are several") {
  config::Config config;
  config.memory.automem = kTiers;
  config.parallel.comm_cores = config.memory.copy_cores = 0;
  const auto place = [&](const char* machine) {
    return plan::place_of(plan::dry_run_ranks(config, synthetic_machine(machine), 1).on_node[0], 1);
  };
  const auto shares = plan::fast_shares(place(platform::kEpycNps4));
  REQUIRE(shares.size() == 8);
  for (size_t c = 0; c < shares.size(); ++c) CHECK((shares[c].node == int(c) && shares[c].workers == 16));
  CHECK(place(platform::kEpycNps4).fast_bytes == 0);
  CHECK(plan::fast_shares(place(platform::kLaptop)).empty());
}

TEST_CASE("tensors spread over nodes only if clusters have several") {
  const Tensor tensor({1 << 20});
  plan::Placement p;
  const auto nodes = [&p](bool move = false) { return plan::nodes_of_fixed(plan::place_of(p, 1), move); };
  CHECK(plan::spread_over_nodes(nodes(), {tensor}) == "");
  p.plan.domain_of = {{.bulk_node = 0}, {.bulk_node = 0}, {.bulk_node = -1}};
  CHECK(plan::spread_over_nodes(nodes(), {tensor}) == "");
  p.plan.domain_of = {{.bulk_node = 4000}, {.bulk_node = 4001}};  // which no test machine has
  CHECK_THAT(plan::spread_over_nodes(nodes(), {Tensor(), tensor}), Contains("NUMA node(s) 4000-4001: mbind: "));
  CHECK(to_vector(tensor)[12345] == 0);
  // What never moves lies in fast memory, where tensors move between that and the other one.
  p.plan.domain_of = {{.bulk_node = 4000, .fast_node = 4002}};
  CHECK(nodes().empty());
  CHECK(nodes(/*move=*/true) == std::vector<int>{4002});
  CHECK_THAT(plan::spread_over_nodes(nodes(true), {tensor}), Contains("NUMA node(s) 4002: mbind: "));
}
