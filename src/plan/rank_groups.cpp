#include "ditrain/plan/rank_groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ditrain/base/clock.hpp"
#include "ditrain/base/error.hpp"
#include "ditrain/ops/elementwise.hpp"

namespace ditrain::plan {
namespace {

// The place of a rank among all of the run, node by node.
int place_on_nodes(const dist::Communicator& world) {
  const std::vector<int> nodes = world.nodes();
  std::vector<int> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return nodes[size_t(a)] < nodes[size_t(b)]; });
  return int(std::find(order.begin(), order.end(), world.rank()) - order.begin());
}

}  // namespace

void TensorGroup::sum(float* data, int64_t n) {
  const ScopedTimer timer(&summing_s_);
  communicator_->count_gradients();
  const auto request = communicator_->start_allreduce_sum(data, n);
  communicator_->await(*request, "a sum over the ranks that share a replica");
}

double TensorGroup::gradient_norm(ops::Context& ctx, autograd::ParameterStore& parameters) const {
  double shared = 0, own = 0;
  for (const autograd::Parameter* p : parameters.state_dict())
    if (p->trainable) (p->part.whole() ? own : shared) += ops::sum_squares(ctx, p->grad);
  communicator_->allreduce_sum(&shared, 1);
  return std::sqrt(shared + own);
}

RankGroups::RankGroups(const config::Config& config, dist::Communicator& world) : world_(world) {
  const int size = config::tensor_ranks(config), place = place_on_nodes(world);
  if (const int groups = config::outer_groups(config); groups > 1) {
    const int ranks = world.world_size() / groups;
    group_ = place / ranks;
    summing_ = ranks > 1 ? world.split(group_, place) : dist::make_null_communicator();
  }
  if (size == 1) return;
  data_ = world.split(place % size, place);
  tensor_ = std::make_unique<TensorGroup>(world.split(place / size, place));
  // Sums go node by node: only where the ranks of a group lie alike do they get the same bits.
  std::string nodes;
  for (const int node : data_->nodes()) nodes += std::to_string(node) + " ";
  const bool differ = dist::broadcast_text(tensor_->communicator(), nodes) != nodes;
  if (world.allreduce_or(differ ? 1 : 0) != 0)
    throw InputError({.where = "config",
                      .what = "ranks that share a replica lie differently on the nodes",
                      .got = fmt::format("parallel.tensor_ranks: {}", size),
                      .expected = "a divisor of the ranks of every node, and as many on each"});
}

nn::TensorParallel RankGroups::tensor_parallel() const {
  if (!tensor_) return {};
  const dist::Communicator& group = tensor_->communicator();
  return {group.rank(), group.world_size(), [group = tensor_.get()](float* data, int64_t n) { group->sum(data, n); }};
}

}  // namespace ditrain::plan
