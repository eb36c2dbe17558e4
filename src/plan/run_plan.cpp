#include "ditrain/plan/run_plan.hpp"

#include <algorithm>
#include <exception>

#include "ditrain/base/error.hpp"
#include "ditrain/config/replicas.hpp"
#include "ditrain/platform/limits.hpp"

namespace ditrain::plan {

namespace {

RunPlan plan_settled(const config::Config& config, int world_size, const RankPlace& place,
                     const DomainBandwidth& bandwidth) {
  RunPlan plan{
      .config = config, .world_size = world_size, .place = place, .replicas = config::replicas(config, world_size)};
  plan.samples = config.train.global_batch / plan.replicas;
  plan.micro_batch = config::micro_batch_of(config, plan.replicas);
  plan.cut = plan_cut(config, plan.micro_batch, place.cluster_sizes, bandwidth);
  nn::Dit model(config.model, {.size = config::tensor_ranks(config)});
  plan.gradients = plan_gradients(config, model.parameters(), plan.replicas);
  plan.automem = plan_automem(config, plan.gradients, plan.samples, plan.micro_batch, place);
  plan.memory = plan_memory(config, world_size, model, plan.gradients, place.ranks_on_node,
                            plan.automem ? &*plan.automem : nullptr);
  return plan;
}

// Degree 0: no block recomputes anything; each degree takes one block more from `none` to `selective`, then from that
// to `block`. The last block is the first: what forward wrote there is still there when backward comes.
std::vector<nn::Recompute> recompute_of_degree(int64_t degree, int64_t depth) {
  std::vector<nn::Recompute> of_blocks(size_t(depth), nn::Recompute::kNone);
  for (int64_t i = 0; i < std::min(degree, depth); ++i) of_blocks[size_t(depth - 1 - i)] = nn::Recompute::kSelective;
  for (int64_t i = depth; i < degree; ++i) of_blocks[size_t(2 * depth - 1 - i)] = nn::Recompute::kBlock;
  return of_blocks;
}

// Without tiers the lowest degree that fits is the fastest. With tiers, what is not kept need not move either: the
// degree of the fastest expected step.
RunPlan plan_recompute(const config::Config& wanted, int world_size, const RankPlace& place,
                       const DomainBandwidth& bandwidth) {
  config::Config config = wanted;
  const int64_t depth = config.model.depth, most = 2 * depth;
  const size_t limit = platform::memory_limit(place.ranks_on_node).bytes / size_t(place.ranks_on_node);
  const auto plan_of = [&](int64_t degree) {
    config.train.recompute_of_blocks = recompute_of_degree(degree, depth);
    return plan_settled(config, world_size, place, bandwidth);
  };
  if (config.memory.automem != config::AutoMem::kOff) {
    constexpr int kTried = 8;
    std::optional<RunPlan> best;
    std::exception_ptr refusal;
    for (int i = 0; i <= kTried; ++i) try {
        RunPlan plan = plan_of(i * most / kTried);
        const bool fits = plan.memory.total() <= limit, best_fits = best && best->memory.total() <= limit;
        if (!best || fits > best_fits ||
            (fits == best_fits && plan.automem->forecast.step_s < best->automem->forecast.step_s))
          best = std::move(plan);
      } catch (const InputError&) {
        refusal = std::current_exception();
      }
    if (!best) std::rethrow_exception(refusal);
    return *best;
  }
  int64_t too_low = -1, enough = most;
  while (enough - too_low > 1) {
    const int64_t degree = (too_low + enough) / 2;
    (plan_of(degree).memory.total() <= limit ? enough : too_low) = degree;
  }
  return plan_of(enough);
}

}  // namespace

RunPlan plan_run(const config::Config& config, int world_size, const RankPlace& place,
                 const DomainBandwidth& bandwidth) {
  return (config.train.recompute ? plan_settled : plan_recompute)(config, world_size, place, bandwidth);
}

}  // namespace ditrain::plan
