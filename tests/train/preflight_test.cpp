#include "ditrain/train/preflight.hpp"

#include <catch2/catch.hpp>

#include "dist/thread_world.hpp"
#include "ditrain/files/json.hpp"
#include "support/small_config.hpp"

using namespace ditrain;
using namespace ditrain::test;
using Catch::Contains;
using train::NodeFacts;

TEST_CASE("preflight: slow nodes, clocks and full disks are named") {
  std::vector<NodeFacts> nodes;
  for (const char* host : {"a", "b", "c", "d"})
    nodes.push_back({.host = host, .gemm_gflops = 100, .memory_gb_s = 50, .link_gbit_s = 20, .free_disk_gib = 10});
  CHECK(train::find_problems(nodes, 10).problems.empty());
  CHECK(train::find_problems(nodes, 10).slow_hosts.empty());
  nodes[1].gemm_gflops = 86, nodes[2].memory_gb_s = 30, nodes[3].link_gbit_s = 2, nodes[3].memory_gb_s = 10;
  nodes[0].clock_s = 1, nodes[1].clock_s = -3;
  const train::PreflightVerdict verdict = train::find_problems(nodes, 10.5);
  CHECK(verdict.slow_hosts == std::vector<std::string>{"c", "d"});
  REQUIRE(verdict.shares.size() == 4);
  CHECK(verdict.shares[1] == Approx(0.86));
  CHECK(verdict.shares[3] == Approx(0.1));
  CHECK(train::find_problems(nodes, 10, 0.5).slow_hosts == std::vector<std::string>{"d"});
  const nlohmann::json json = files::parse_json(train::to_json(nodes, verdict));
  CHECK(json.at("slow") == nlohmann::json({"c", "d"}));
  CHECK(json.at("problems").size() == 8);
  CHECK(json.at("nodes").at(1).at("host") == "b");
  CHECK(json.at("nodes").at(1).at("gemm_gflops") == 86);
  CHECK(json.at("nodes").at(3).at("slow") == true);
  REQUIRE(verdict.problems.size() == 8);
  CHECK_THAT(verdict.problems[0], Contains("c is slow: memory at 75 %"));
  CHECK_THAT(verdict.problems[2], Contains("d is slow: link at 10 %"));
  CHECK_THAT(verdict.problems[3], Contains("a has 10.0 GiB free") && Contains("10.5 GiB"));
  CHECK_THAT(verdict.problems[4], Contains("the clock of b is -3.0 s from that of a"));
}

TEST_CASE("preflight: every node measures its link with both neighbours, one at a time") {
  for (const int n : {2, 3, 4, 5, 8}) {
    INFO(n << " nodes");
    std::vector<std::multiset<int>> partners(static_cast<size_t>(n));
    for (int round = 0; round < train::link_rounds(n); ++round)
      for (int node = 0; node < n; ++node)
        if (const int partner = train::link_partner(node, round, n); partner >= 0) {
          CHECK(train::link_partner(partner, round, n) == node);
          partners[size_t(node)].insert(partner);
        }
    for (int node = 0; node < n; ++node)
      CHECK(partners[size_t(node)] == std::multiset<int>{(node + 1) % n, (node + n - 1) % n});
  }
}

TEST_CASE("preflight: ranks of several nodes measure together and agree on the verdict") {
  config::Config config = small_config();
  config.parallel.threads = 1;
  config.model.num_classes = nn::kClassesOfData;  // there is no data to ask
  std::vector<int> good(4, -1);
  ThreadWorld world{.ranks = 4, .ranks_per_node = 2};
  run_ranks(world, [&](ThreadCommunicator& comm) {
    good[size_t(comm.rank())] = train::run_preflight(config, "nowhere/run", comm, {.seconds = 0.01});
  });
  for (const int of_rank : good) CHECK(of_rank == good[0]);
  CHECK(good[0] >= 0);
}
