#include "ditrain/plan/cluster_description.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ditrain/base/error.hpp"
#include "ditrain/config/yaml_map.hpp"

namespace ditrain::plan {
namespace {

using config::YamlMap;

constexpr double kGB = 1e9, kBytesPerGbit = 1e9 / 8, kMicrosecond = 1e-6;
constexpr int64_t kMostNodes = 1 << 20;
constexpr int64_t kMostDies = 1 << 24;  // of all nodes: an int holds a few times as many ranks
const std::vector<std::string> kKeys = {"name", "nodes", "dies_per_node", "planes", "die", "inside", "tree"};

Die read_die(const YamlMap& map) {
  Die die;
  die.cores = int(map.integer("cores", 1, 1 << 16));
  die.threads_per_core = int(map.integer("threads_per_core", 1, 64, 1));
  die.flop_f32_per_s = 1e12 * map.number("tflop_f32_per_s", 1e-6, 1e6);
  die.flop_bf16_per_s = 1e12 * map.number("tflop_bf16_per_s", 0, 1e6, 0);
  die.share = map.number("share", 0.001, 1);
  die.memory_gb = map.number("memory_gb", 0.001, 1e6);
  die.memory_gb_per_s = map.number("memory_gb_per_s", 0.001, 1e6);
  die.bulk_gb = map.number("bulk_gb", 0, 1e6, 0);
  return die;
}

std::vector<TreeLevel> read_tree(const YamlMap& file, int nodes) {
  std::vector<TreeLevel> tree;
  const std::vector<YamlMap> levels = file.maps("tree", {"down", "up", "gbit_per_s", "latency_us"});
  int64_t places = 1;
  for (const YamlMap& level : levels) {
    const bool top = tree.size() + 1 == levels.size();
    tree.push_back({.down = int(level.integer("down", 1, kMostNodes)),
                    .up = int(level.integer("up", 0, kMostNodes, 0)),
                    .gbit_per_s = level.number("gbit_per_s", 1e-3, 1e6),
                    .latency_us = level.number("latency_us", 0, 1e6)});
    if (top != (tree.back().up == 0))
      level.refuse("up", std::to_string(tree.back().up), top ? "no links up at the top" : "at least 1 below the top");
    places = std::min(kMostNodes, places * tree.back().down);
  }
  if (places < nodes)
    file.refuse("tree", fmt::format("places for {} nodes", places), fmt::format("at least the {} of nodes", nodes));
  return tree;
}

ClusterDescription read_cluster(const YamlMap& file) {
  ClusterDescription p;
  p.name = file.text("name");
  p.nodes = int(file.integer("nodes", 1, kMostNodes));
  p.dies_per_node = int(file.integer("dies_per_node", 1, 1024));
  if (int64_t(p.nodes) * p.dies_per_node > kMostDies)
    file.refuse("nodes", fmt::format("{} nodes of {} dies", p.nodes, p.dies_per_node),
                fmt::format("at most {} dies in all", kMostDies),
                fmt::format("nodes: {}", kMostDies / p.dies_per_node));
  p.planes = int(file.integer("planes", 1, 64, 1));
  p.die = read_die(file.map("die", {"cores", "threads_per_core", "tflop_f32_per_s", "tflop_bf16_per_s", "share",
                                    "memory_gb", "memory_gb_per_s", "bulk_gb"}));
  const YamlMap inside = file.map("inside", {"gb_per_s", "latency_us"});
  p.inside = {.gb_per_s = inside.number("gb_per_s", 1e-3, 1e6), .latency_us = inside.number("latency_us", 0, 1e6)};
  if (p.nodes > 1 || file.has("tree")) p.tree = read_tree(file, p.nodes);
  return p;
}

}  // namespace

double Die::training_flop_per_s(DType precision) const {
  if (precision == DType::kBF16 && flop_bf16_per_s == 0)
    refuse("platform", "its dies have no products in bf16", "train.precision: bf16", "f32",
           "--set train.precision=f32, or die.tflop_bf16_per_s in its file");
  return share * (precision == DType::kBF16 ? flop_bf16_per_s : flop_f32_per_s);
}

int64_t ClusterDescription::nodes_below(int level) const {
  int64_t count = 1;
  for (int l = 0; l <= level; ++l) count = std::min(kMostNodes, count * tree[size_t(l)].down);
  return count;
}

int ClusterDescription::level_between(int node_a, int node_b) const {
  int level = -1;
  while (node_a / nodes_below(level) != node_b / nodes_below(level)) ++level;
  return level;
}

double ClusterDescription::node_bytes_per_s() const { return uplink_bytes_per_s(-1); }

double ClusterDescription::uplink_bytes_per_s(int level) const {
  const double links = level < 0 ? 1 : tree[size_t(level)].up;
  return planes * links * tree[size_t(level + 1)].gbit_per_s * kBytesPerGbit;
}

double ClusterDescription::bytes_per_s(int level) const {
  if (level < 0) return inside.gb_per_s * kGB;
  double least = node_bytes_per_s();
  for (int l = 0; l < level; ++l) least = std::min(least, uplink_bytes_per_s(l));
  return least;
}

double ClusterDescription::latency_s(int level) const {
  if (level < 0) return inside.latency_us * kMicrosecond;
  double us = 0;
  for (int l = 0; l <= level; ++l) us += 2 * tree[size_t(l)].latency_us;
  return us * kMicrosecond;
}

double ClusterDescription::oversubscription(int level) const {
  if (level + 1 >= num_levels()) return 1;
  return std::max(1.0, double(nodes_below(level)) * node_bytes_per_s() / uplink_bytes_per_s(level));
}

ClusterDescription ClusterDescription::with_nodes(int64_t count) const {
  if (count < 1 || count > nodes)
    refuse("platform", fmt::format("{} has {} node(s)", name, nodes), fmt::format("{} nodes", count),
           fmt::format("1 to {}", nodes), fmt::format("--nodes {}, or nodes in its file", nodes));
  ClusterDescription fewer = *this;
  fewer.nodes = int(count);
  return fewer;
}

ClusterDescription parse_cluster(const std::string& text, const std::string& file_name) {
  return read_cluster(YamlMap(text, file_name, kKeys));
}

ClusterDescription load_cluster(const std::string& path) {
  return read_cluster(YamlMap::load(path, "--platform", kKeys));
}

std::string describe(const ClusterDescription& p) {
  std::string text = fmt::format(
      "{}: {} node(s) of {} die(s). A die has {} cores, {:.4g} TFLOP/s in f32{}, of which training reaches {:.0f} %, "
      "and {:.4g} GB of memory at {:.4g} GB/s{}. Dies of a node exchange {:.4g} GB/s.",
      p.name, p.nodes, p.dies_per_node, p.die.cores, p.die.flop_f32_per_s / 1e12,
      p.die.flop_bf16_per_s > 0 ? fmt::format(" and {:.4g} in bf16", p.die.flop_bf16_per_s / 1e12) : "",
      100 * p.die.share, p.die.memory_gb, p.die.memory_gb_per_s,
      p.die.bulk_gb > 0 ? fmt::format(", beside {:.4g} GB of slower memory", p.die.bulk_gb) : "", p.inside.gb_per_s);
  if (p.tree.empty()) return text + "\n";
  text += fmt::format(" A node has {:.4g} Gbit/s", p.node_bytes_per_s() / kBytesPerGbit);
  if (p.planes > 1) text += fmt::format(" over {} planes", p.planes);
  text += fmt::format("; {} level(s) of switches", p.num_levels());
  for (int l = 0; l + 1 < p.num_levels(); ++l)
    if (p.oversubscription(l) > 1)
      text += fmt::format(", {:.3g} to 1 oversubscribed above {} nodes", p.oversubscription(l), p.nodes_below(l));
  return text + ".\n";
}

}  // namespace ditrain::plan
