#include "cluster_simulation.hpp"

#include <algorithm>
#include <cmath>

namespace ditrain::bench {

double StepSchedule::update_s() const {
  double sum = lone_update_s;
  for (const Exchange& e : sums) sum += e.update_s;
  return sum;
}

namespace {

// In each round every node sends to the one that is so many places further.
void add_rotations(int nodes, int rounds, std::vector<Flow>& flows) {
  for (int j = 0; j < rounds; ++j) {
    const int places = rounds == nodes - 1 ? j + 1 : int(int64_t(nodes) * (2 * j + 1) / (2 * rounds));
    for (int from = 0; from < nodes; ++from) flows.push_back({from, (from + places) % nodes, 1.0 / rounds});
  }
}

int children_of(const plan::ClusterDescription& cluster, int level) {  // nodes below, of those that there are
  return int(std::min<int64_t>(cluster.nodes, cluster.nodes_below(level)));
}

// Rounds of pairs that meet at the switches of a level: whole switches of the level below swap, each node of one with
// the node so many places further of the other.
void add_rounds_of_level(const plan::ClusterDescription& cluster, int level, int rounds, std::vector<Flow>& flows) {
  const int size = children_of(cluster, level), inner = children_of(cluster, level - 1), others = size - inner;
  if (others == 0) return;
  const int count = std::clamp(int(std::lround(double(rounds) * others / (cluster.nodes - 1))), 1, others);
  for (int j = 0; j < count; ++j) {
    const int which = int(int64_t(others) * (2 * j + 1) / (2 * count)), turn = inner + which / inner * inner;
    for (int from = 0; from < cluster.nodes; ++from) {
      const int first = from / size * size, inner_first = from / inner * inner;
      const int to_inner = first + (inner_first - first + turn) % size;
      flows.push_back(
          {from, to_inner + (from - inner_first + which) % inner, double(others) / double(cluster.nodes - 1) / count});
    }
  }
}

}  // namespace

std::vector<Flow> flows_of(const plan::ClusterDescription& cluster, int rounds) {
  std::vector<Flow> flows;
  if (cluster.nodes == 1) return flows;
  const int all = cluster.nodes - 1;
  bool full = true;  // no switch has fewer nodes than others of its level
  for (int level = 0; level < cluster.num_levels(); ++level)
    full = full && cluster.nodes % children_of(cluster, level) == 0;
  if (rounds == 0 || rounds >= all || !full)
    add_rotations(cluster.nodes, rounds == 0 ? all : std::min(2 * rounds, all), flows);
  else
    for (int level = 0; level < cluster.num_levels(); ++level) add_rounds_of_level(cluster, level, rounds, flows);
  return flows;
}

}  // namespace ditrain::bench
