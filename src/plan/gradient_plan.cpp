#include "ditrain/plan/gradient_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "ditrain/base/error.hpp"
#include "ditrain/base/text.hpp"
#include "ditrain/config/replicas.hpp"
#include "ditrain/plan/memory_plan.hpp"

namespace ditrain::plan {
namespace {

constexpr int64_t kLeastBucket = 1024;  // elements
constexpr int64_t kMostGroups = 4096;   // of updates on one replica

std::vector<FactorLayer> factor_layers(const config::Config& config, autograd::ParameterStore& layout, int replicas) {
  if (replicas == 1 || config.dist.adaln == config::AdalnExchange::kReduce || !config::may_exchange_factors(config))
    return {};
  std::vector<FactorLayer> layers;
  for (const autograd::Parameter* w : layout.state_dict()) {
    if (!w->offers_gradient) continue;
    const autograd::Parameter& b = layout.find(w->name.substr(0, w->name.rfind('.')) + ".bias");
    const FactorLayer layer{w->name, b.name, w->shape[0], w->shape[1], {w->slice.begin, b.slice.end}};
    if (config.train.global_batch * layer.row_elements() <= w->size()) layers.push_back(layer);
  }
  return layers;
}

std::vector<autograd::ArenaSlice> slices_of_nodes(const config::Config& config) {
  nn::Model model(config.model);
  nn::ModelPass pass(model, config.train.global_batch, autograd::Mode::kTraining, pass_options(config));
  std::vector<autograd::ArenaSlice> slices;
  for (const auto& node : pass.tape().nodes())
    if (const autograd::ArenaSlice slice = node->parameter_slice(); slice.begin < slice.end) slices.push_back(slice);
  return slices;
}

// Parameters that a rank updates as a whole, each with the vectors behind it. The costliest goes first, to the rank
// that has least to do.
std::vector<dist::WholeBucket> deal_out(const autograd::ParameterStore& layout,
                                        const std::function<double(const autograd::Parameter&)>& cost, int ranks) {
  struct Item {
    dist::WholeBucket bucket;
    double cost;
  };
  std::vector<Item> items;
  bool follows = false;
  for (const autograd::Parameter* p : layout.in_arena()) {
    if (const double of_p = cost(*p); of_p > 0)
      items.push_back({{p->slice.begin, p->slice.end}, of_p});
    else if (follows && p->shape.size() == 1)
      items.back().bucket.end = p->slice.end;
    else {
      follows = false;
      continue;
    }
    follows = true;
  }
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.cost > b.cost; });
  std::vector<double> work(size_t(ranks), 0.0);
  std::vector<dist::WholeBucket> buckets;
  for (Item& item : items) {
    const auto least = std::min_element(work.begin(), work.end());
    *least += item.cost;
    item.bucket.owner = int(least - work.begin());
    buckets.push_back(item.bucket);
  }
  return buckets;
}

}  // namespace

int64_t GradientPlan::state_elements() const {
  return sharded ? dist::Shards(buckets, rank, replicas).size() : buckets.n();
}

int64_t GradientPlan::most_state_elements() const {
  return sharded ? dist::largest_shards(buckets, replicas) : buckets.n();
}

std::vector<autograd::ArenaSlice> GradientPlan::state_parts() const {
  std::vector<autograd::ArenaSlice> parts;
  if (!sharded) return parts;
  const dist::Shards shards(buckets, rank, replicas);
  for (const parallel::Range& part : shards.parts()) parts.push_back({part.begin, part.end});
  return parts;
}

// Groups in the order in which their gradients become final, which is that of the arena from its end.
UpdateSchedule schedule_updates(const GradientPlan& plan, const autograd::ParameterStore& layout) {
  const dist::Shards shards(plan.buckets, plan.sharded ? plan.rank : 0, plan.sharded ? plan.replicas : 1);
  const std::vector<autograd::ArenaSlice> segments = layout.segments();
  const auto cut = [&](const parallel::Range& range) {
    std::vector<autograd::ArenaSlice> slices;
    if (range.empty()) return slices;
    auto s = std::partition_point(segments.begin(), segments.end(),
                                  [&](const autograd::ArenaSlice& segment) { return segment.end <= range.begin; });
    for (; s != segments.end() && s->begin < range.end; ++s)
      slices.push_back({std::max(s->begin, range.begin), std::min(s->end, range.end)});
    return slices;
  };
  UpdateSchedule schedule;
  const auto add = [&](const parallel::Range& arena, const parallel::Range& mine) {
    UpdateGroup& group = schedule.groups.emplace_back(UpdateGroup{arena, {mine.begin, mine.end}, cut(mine), {}});
    if (plan.sharded)
      group.taken = cut(arena);
    else
      std::reverse(group.pieces.begin(), group.pieces.end());
  };
  for (auto node = plan.node_slices.rbegin(); node != plan.node_slices.rend(); ++node)
    add({node->begin, node->end}, {node->begin, node->end});
  for (int64_t k = 0; plan.node_slices.empty() && k < plan.buckets.size(); ++k) {
    parallel::Range bucket = plan.buckets[k];
    if (plan.sharded) {
      add(bucket, shards.parts()[size_t(k)]);
      continue;
    }
    while (plan.replicas == 1 && k + 1 < plan.buckets.size() && bucket.size() < plan.buckets.n() / kMostGroups)
      bucket.begin = plan.buckets[++k].begin;
    if (plan.whole_parameters) {  // what a bucket has of a parameter waits for the rest of it
      bucket.end = schedule.groups.empty() ? plan.buckets.n() : schedule.groups.back().arena.begin;
      bucket.begin = layout.first_whole(bucket.begin);
    }
    add(bucket, bucket);
  }
  for (UpdateGroup& group : schedule.groups)
    group.first_update = std::exchange(schedule.size, schedule.size + int64_t(group.pieces.size()));
  for (UpdateGroup& group : schedule.groups)
    group.first_take = std::exchange(schedule.size, schedule.size + int64_t(group.taken.size()));
  return schedule;
}

int64_t GradientPlan::gradient_elements() const {
  int64_t elements = gradient_slices.empty() ? buckets.n() : 0;
  for (const autograd::ArenaSlice& slice : gradient_slices) elements = std::max(elements, slice.end - slice.begin);
  return elements;
}

size_t GradientPlan::factor_scratch_bytes() const {
  int64_t dy = 0, x = 0;
  for (const FactorLayer& layer : factors) dy = std::max(dy, layer.outputs), x = std::max(x, layer.inputs);
  return size_t(factor_rows * (dy + x)) * sizeof(float);
}

GradientPlan plan_gradients(const config::Config& config, autograd::ParameterStore& layout, int all_replicas,
                            int rank) {
  const int groups = config::outer_groups(config), replicas = all_replicas / groups;
  const std::vector<FactorLayer> factors = factor_layers(config, layout, replicas);
  const optim::Algorithm& algorithm = optim::algorithm_of(config.optimizer);
  const bool shards = config.dist.shard_optimizer, sharded = shards && replicas > 1;
  const bool whole_parameters = algorithm.whole_cost != nullptr;
  std::vector<dist::WholeBucket> whole_buckets;
  const auto cost = [&](const autograd::Parameter& p) { return algorithm.whole_cost(p, config.train.precision); };
  // For one replica, too: the norm adds up bucket by bucket.
  if (shards && whole_parameters) whole_buckets = deal_out(layout, cost, replicas);
  for (const FactorLayer& layer : factors) whole_buckets.push_back({layer.slice.begin, layer.slice.end});
  const int64_t elements = int64_t(config.dist.bucket_mib * 0x1p20 / sizeof(float));
  const bool stops = config.optimizer.clip_norm == 0 && config.train.on_non_finite == config::OnNonFinite::kStop;
  const bool whole = config::tensor_ranks(config) == 1;
  const bool in_backward = stops && whole && replicas == 1 && !config.dist.reproducible;
  const bool one_pass = config::micro_batch_of(config, all_replicas) == config.train.global_batch / groups;
  const std::vector<autograd::ArenaSlice> nodes =
      in_backward ? slices_of_nodes(config) : std::vector<autograd::ArenaSlice>();
  DITRAIN_CHECK(rank >= 0 && rank < all_replicas, "a rank that has no replica");
  for (const autograd::StateArray& array : optim::state_arrays(config.optimizer, config.ema))
    if (layout.layout_of(array).size() == 0)
      throw InputError(
          {.where = "optimizer.kind",
           .what = fmt::format("no parameter of the model has the state {} of {}", array.name, config.optimizer.kind),
           .hint = "optimizer.kind: adamw"});
  return {.replicas = replicas,
          .groups = groups,
          .buckets = {layout.arena_size(), std::max(kLeastBucket, elements), whole_buckets},
          .factors = factors,
          .factor_rows = factors.empty() ? 0 : config.train.global_batch,
          .whole_parameters = whole_parameters,
          .sharded = sharded,
          .updates_early = stops && whole && replicas > 1,
          .updates_in_backward = in_backward,
          .gradient_slices = one_pass ? nodes : std::vector<autograd::ArenaSlice>(),
          .node_slices = nodes,
          .rank = rank % replicas};
}

std::string advice_on_factors(const config::Config& config) {
  const bool sums = config.dist.adaln == config::AdalnExchange::kReduce;
  return sums && config::may_exchange_factors(config) ? "dist.adaln: auto" : "";
}

std::string describe_factors(const GradientPlan& plan, const config::Config& config) {
  if (plan.factors.empty()) return "";
  const double wire_bytes = config.dist.wire == DType::kBF16 ? 2 : 4;  // of an element of a matrix
  double factors = 0, matrices = 0;
  for (const FactorLayer& layer : plan.factors) {
    factors += double(plan.factor_rows * layer.row_elements()) * sizeof(float);
    matrices += double(layer.slice.size()) * wire_bytes;
  }
  const double others = double(plan.replicas - 1) / double(plan.replicas);
  return fmt::format(
      "adaLN gradients of {} layers: ranks gather the factors of {} samples, {} per rank and step instead of {}",
      plan.factors.size(), plan.factor_rows, format_bytes(size_t(others * factors)),
      format_bytes(size_t(2 * others * matrices)));
}

}  // namespace ditrain::plan
