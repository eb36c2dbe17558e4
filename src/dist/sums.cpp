#include "ditrain/dist/sums.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "ditrain/base/error.hpp"

namespace ditrain::dist {

namespace {

// Every inner node of the tree is a merge after its last term.
void count_merges(int64_t first, int64_t n, std::vector<int>& merges) {
  if (n == 1) return;
  count_merges(first, n / 2, merges);
  count_merges(first + n / 2, n - n / 2, merges);
  ++merges[size_t(first + n - 1)];
}

}  // namespace

SumTree::SumTree(int64_t terms) {
  DITRAIN_CHECK(terms >= 1, "a sum of " + std::to_string(terms) + " terms");
  merges_.resize(size_t(terms));
  count_merges(0, terms, merges_);
  int waiting = 0;
  for (const int merges : merges_) {
    waiting_.push_back(waiting);
    waiting += 1 - merges;
  }
}

int SumTree::most_waiting() const { return *std::max_element(waiting_.begin(), waiting_.end()); }

double tree_sum(const double* terms, int64_t n, int64_t stride) {
  if (n == 1) return *terms;
  return tree_sum(terms, n / 2, stride) + tree_sum(terms + n / 2 * stride, n - n / 2, stride);
}

void expect_subtrees(const Communicator& communicator) {
  const std::vector<int> nodes = communicator.nodes();
  const auto a_node = uint64_t(std::count(nodes.begin(), nodes.end(), 0));
  bool whole = std::has_single_bit(nodes.size()) && std::has_single_bit(a_node);
  std::string got;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    whole = whole && nodes[rank] == int(rank / a_node);
    got += (rank == 0 ? "nodes " : " ") + std::to_string(nodes[rank]);
  }
  if (whole) return;
  throw InputError({.where = "ranks",
                    .what = "a sum over these ranks, node by node, is not the tree that dist.reproducible promises",
                    .got = got + " of ranks 0, 1, ...",
                    .expected = "a power of two of ranks, and the same power of two of neighbours on every node",
                    .hint = "mpirun --map-by slot with as many slots on each host, or srun --distribution=block"});
}

}  // namespace ditrain::dist
