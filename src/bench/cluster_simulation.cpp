#include "cluster_simulation.hpp"

#include <algorithm>
#include <cmath>

namespace ditrain::bench {

double StepSchedule::update_s() const {
  double sum = 0;
  for (const Exchange& e : sums) sum += e.update_s;
  return sum;
}

namespace {

void add_all_pairs(int nodes, std::vector<Flow>& flows) {
  for (int from = 0; from < nodes; ++from)
    for (int step = 1; step < nodes; ++step)
      flows.push_back({from, (from + step) % nodes, 1.0 / double(nodes - 1)});
}

}  // namespace

// A round of level l moves each node's slices by whole switches of level l - 1, within the switch of level l.
std::vector<Flow> flows_of(const plan::Platform& cluster, int rounds) {
  const int nodes = cluster.nodes;
  std::vector<Flow> flows;
  if (nodes > 1 && (rounds == 0 || rounds >= nodes - 1)) add_all_pairs(nodes, flows);
  if (!flows.empty() || nodes == 1) return flows;
  for (int from = 0; from < nodes; ++from)
    for (int level = 0; level < cluster.num_levels(); ++level) {
      const int below = int(std::min<int64_t>(nodes, cluster.nodes_below(level))),
                inner = int(std::min<int64_t>(nodes, cluster.nodes_below(level - 1)));
      const int first = from / below * below, size = std::min(below, nodes - first);
      const int own = from / inner * inner, others = size - std::min(inner, nodes - own);
      const int turns = (size + inner - 1) / inner - 1;  // whole switches to move by
      if (others <= 0 || turns <= 0) continue;
      const int here = std::clamp(int(std::lround(double(rounds) * others / (nodes - 1))), 1, turns);
      for (int j = 0; j < here; ++j) {
        const int turn = 1 + int(double(turns) * (2 * j + 1) / (2 * here));
        flows.push_back({from, first + (from - first + turn * inner) % size, double(others) / (nodes - 1) / here});
      }
    }
  return flows;
}

}  // namespace ditrain::bench
