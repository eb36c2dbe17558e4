// Descriptions of clusters: the tree's rates and latencies by hand, and files that are refused with their line.
#include "ditrain/plan/cluster_description.hpp"

#include <catch2/catch.hpp>
#include <filesystem>

#include "config/config_support.hpp"

using namespace ditrain;
using test::message_of;

namespace {

const std::string kRack = R"(name: racks
nodes: 12
dies_per_node: 2
planes: 2
die: {cores: 4, tflop_f32_per_s: 2, share: 0.5, memory_gb: 8, memory_gb_per_s: 100}
inside: {gb_per_s: 10, latency_us: 1}
tree:
  - {down: 4, up: 2, gbit_per_s: 10, latency_us: 2}
  - {down: 3, gbit_per_s: 20, latency_us: 0.5}
)";

std::string with(const std::string& was, const std::string& is) {
  std::string text = kRack;
  const size_t at = text.find(was);
  REQUIRE(at != text.npos);
  return text.replace(at, was.size(), is);
}

std::string refusal(const std::string& text) {
  return message_of([&] { plan::parse_cluster(text, "racks.yaml"); });
}

}  // namespace

TEST_CASE("a tree of racks: rates, latencies and oversubscription by hand") {
  const plan::ClusterDescription p = plan::parse_cluster(kRack, "racks.yaml");
  CHECK(p.ranks() == 24);
  CHECK(p.die.training_flop_per_s(DType::kF32) == Approx(1e12));
  CHECK_THROWS_AS(p.die.training_flop_per_s(DType::kBF16), InputError);
  CHECK(p.nodes_below(-1) == 1);
  CHECK(p.nodes_below(0) == 4);
  CHECK(p.nodes_below(1) == 12);
  CHECK(p.level_between(5, 5) == -1);
  CHECK(p.level_between(4, 7) == 0);
  CHECK(p.level_between(3, 4) == 1);
  CHECK(p.node_bytes_per_s() == Approx(2 * 10e9 / 8));
  CHECK(p.uplink_bytes_per_s(0) == Approx(2 * 2 * 20e9 / 8));  // two planes, two links each
  CHECK(p.bytes_per_s(-1) == Approx(10e9));
  CHECK(p.bytes_per_s(1) == Approx(2 * 10e9 / 8));
  CHECK(p.latency_s(-1) == Approx(1e-6));
  CHECK(p.latency_s(0) == Approx(4e-6));
  CHECK(p.latency_s(1) == Approx(5e-6));
  // 4 nodes of 20 Gbit/s under links of 80.
  CHECK(p.oversubscription(0) == Approx(1));
  CHECK(plan::parse_cluster(with("up: 2", "up: 1"), "").oversubscription(0) == Approx(2));
  CHECK(p.oversubscription(1) == 1);
  CHECK(p.with_nodes(5).ranks() == 10);
  CHECK(p.die.threads_per_core == 1);
  CHECK(plan::parse_cluster(with("cores: 4", "cores: 4, threads_per_core: 2"), "").die.threads_per_core == 2);
  CHECK(message_of([&] { p.with_nodes(13); }).find("[platform] racks has 12 node(s); got 13 nodes, expected 1 to 12") ==
        0);
  CHECK(plan::describe(p).find("20 Gbit/s over 2 planes; 2 level(s) of switches") != std::string::npos);
}

TEST_CASE("descriptions of clusters that are refused say where and what") {
  CHECK(refusal(with("dies_per_node", "dies_pre_node")).find("[config] racks.yaml:3: unknown key dies_pre_node") == 0);
  CHECK(refusal(with("share: 0.5, ", "")).find("[config] racks.yaml:5: die.share is missing") == 0);
  CHECK(refusal(with("share: 0.5", "share: 1.5")).find("[config] racks.yaml:5: die.share: bad value; got '1.5'") == 0);
  CHECK(refusal(with("nodes: 12", "nodes: 13"))
            .find("[config] racks.yaml:7: tree: bad value; got places for 12 nodes, expected at least the 13") == 0);
  CHECK(
      refusal(with("nodes: 12\ndies_per_node: 2", "nodes: 1048576\ndies_per_node: 1024")) ==
      "[config] racks.yaml:2: nodes: bad value; got 1048576 nodes of 1024 dies, expected at most 16777216 dies in all; "
      "try nodes: 16384");
  CHECK(refusal(with("nodes: 12\ndies_per_node: 2", "nodes: 1048576\ndies_per_node: 16"))
            .find("[config] racks.yaml:7: tree: bad value") == 0);  // as many dies as there may be
  CHECK(refusal(with("gbit_per_s: 20", "gbit_per_s: fast")).find("racks.yaml:9: tree[1].gbit_per_s: bad value") !=
        std::string::npos);
  CHECK(refusal(with(" up: 2,", "")).find("racks.yaml:8: tree[0].up: bad value; got 0, expected at least 1") !=
        std::string::npos);
  CHECK(refusal(with("down: 3,", "down: 3, up: 1,")).find("tree[1].up: bad value; got 1, expected no links") !=
        std::string::npos);
  CHECK(refusal(with("tree:", "tree: 3 #")).find("racks.yaml:8: not valid YAML") != std::string::npos);
  CHECK(refusal(with("inside: {gb_per_s: 10, latency_us: 1}", "inside: 10")).find("racks.yaml:6: inside: bad value") !=
        std::string::npos);
  CHECK(refusal(with("nodes: 12", "nodes: 12\nnodes: 13")).find("nodes is there twice") != std::string::npos);
  CHECK(refusal("- 1\n").find("[config] racks.yaml:1: not a map of keys") == 0);
}

TEST_CASE("the platforms that come along are read") {
  const std::string folder = std::string(DITRAIN_GOLDEN_DIR) + "/../../configs/platforms";
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    INFO(entry.path());
    const plan::ClusterDescription p = plan::load_cluster(entry.path().string());
    CHECK(plan::describe(p).starts_with(p.name + ": "));
    ++files;
  }
  CHECK(files >= 4);
  const plan::ClusterDescription lineshine = plan::load_cluster(folder + "/lineshine.yaml");
  CHECK(lineshine.node_bytes_per_s() == Approx(1.6e12 / 8));
  CHECK((lineshine.oversubscription(0) == 1 && lineshine.oversubscription(1) == 1));
  CHECK(plan::load_cluster(folder + "/ethernet_10g.yaml").oversubscription(0) == Approx(3));
  CHECK(message_of([] { plan::load_cluster("ethernet_10.yaml"); }).find("no such config file") != std::string::npos);
}

TEST_CASE("a platform without its folder is found by its name") {
  struct Here {
    std::filesystem::path was = std::filesystem::current_path();
    ~Here() { std::filesystem::current_path(was); }
  } here;
  std::filesystem::current_path(std::string(DITRAIN_GOLDEN_DIR) + "/../..");
  CHECK(message_of([] { plan::load_cluster("lineshine.yaml"); }).find("try --platform platforms/lineshine.yaml") !=
        std::string::npos);
}
