#include "ditrain/plan/run_plan.hpp"

#include <algorithm>
#include <exception>

#include "ditrain/base/error.hpp"
#include "ditrain/config/replicas.hpp"

namespace ditrain::plan {

namespace {

RunPlan plan_settled(const config::Config& config, int world_size, const RankPlace& place,
                     const DomainBandwidth& bandwidth, const InputFacts& facts) {
  RunPlan plan{.config = config,
               .world_size = world_size,
               .place = place,
               .replicas = config::replicas(config, world_size),
               .facts = facts};
  plan.samples = config.train.global_batch / plan.replicas;
  plan.micro_batch = config::micro_batch_of(config, plan.replicas);
  plan.cut = plan_cut(config, plan.micro_batch, place.cluster_sizes, bandwidth);
  nn::Model model(config.model, {.size = config::tensor_ranks(config)});
  plan.gradients = plan_gradients(config, model.parameters(), plan.replicas, place.rank);
  plan.automem = plan_automem(config, plan.gradients, plan.samples, plan.micro_batch, place);
  plan.memory =
      plan_memory(config, world_size, model, plan.gradients, place, facts, plan.automem ? &*plan.automem : nullptr);
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

// Plans of one config in which blocks recompute to another degree each.
class Degrees {
 public:
  Degrees(const config::Config& config, int world_size, const RankPlace& place, const DomainBandwidth& bandwidth,
          const InputFacts& facts)
      : config_(config), world_size_(world_size), place_(place), bandwidth_(bandwidth), facts_(facts) {}

  RunPlan plan(int64_t degree) {
    config_.train.recompute_of_blocks = recompute_of_degree(degree, config_.model.depth);
    return plan_settled(config_, world_size_, place_, bandwidth_, facts_);
  }
  bool fits(const RunPlan& plan) const {
    return plan.memory.outside_huge_pages() <= rank_limit(plan.memory, place_.ranks_on_node, usable_);
  }

  // The lowest degree that fits, else the highest.
  int64_t lowest_that_fits() {
    int64_t too_low = -1, enough = most_;
    while (enough - too_low > 1) {
      const int64_t degree = (too_low + enough) / 2;
      (fits(plan(degree)) ? enough : too_low) = degree;
    }
    return enough;
  }

  // With tiers, what is not kept need not move either: several degrees to choose from by their time, those that fit if
  // one does, else the one with the fewest bytes.
  std::vector<RunPlan> some() {
    constexpr int kTried = 8;
    std::vector<RunPlan> plans;
    std::exception_ptr refusal;
    for (int i = 0; i <= kTried; ++i) try {
        plans.push_back(plan(i * most_ / kTried));
      } catch (const InputError&) {
        refusal = std::current_exception();
      }
    if (plans.empty()) std::rethrow_exception(refusal);
    if (std::any_of(plans.begin(), plans.end(), [&](const RunPlan& p) { return fits(p); })) {
      std::erase_if(plans, [&](const RunPlan& p) { return !fits(p); });
      return plans;
    }
    return {*std::min_element(plans.begin(), plans.end(),
                              [](const RunPlan& x, const RunPlan& y) { return x.memory.total() < y.memory.total(); })};
  }

 private:
  config::Config config_;
  const int world_size_;
  const RankPlace place_;
  const DomainBandwidth bandwidth_;
  const InputFacts facts_;
  const int64_t most_ = 2 * config_.model.depth;
  const size_t usable_ = usable_bytes(place_.ranks_on_node);  // of the node
};

RunPlan fastest(std::vector<RunPlan> plans) {
  RunPlan* best = nullptr;
  std::exception_ptr refusal;
  for (RunPlan& plan : plans) try {
      if (plan.automem) automem::choose_fastest(*plan.automem);
      if (best == nullptr || (plan.automem && plan.automem->forecast.step_s < best->automem->forecast.step_s))
        best = &plan;
    } catch (const InputError&) {
      refusal = std::current_exception();
    }
  if (best == nullptr) std::rethrow_exception(refusal);
  return std::move(*best);
}

}  // namespace

RunPlan plan_run(const config::Config& config, int world_size, const RankPlace& place, const DomainBandwidth& bandwidth,
                 const InputFacts& facts) {
  Degrees degrees(config, world_size, place, bandwidth, facts);
  RunPlan plan = config.train.recompute   ? fastest({plan_settled(config, world_size, place, bandwidth, facts)})
                 : config.memory.moves()  ? fastest(degrees.some())
                 : place.recompute_degree ? degrees.plan(*place.recompute_degree)
                                          : degrees.plan(degrees.lowest_that_fits());
  nn::Model layout(config.model, {.size = config::tensor_ranks(config)});
  plan.gradients.updates = schedule_updates(plan.gradients, layout.parameters());
  return plan;
}

RunPlan plan_briefly(const config::Config& config, int world_size, const RankPlace& place, const InputFacts& facts) {
  return plan_settled(config, world_size, place, {}, facts);
}

MemoryPlan planned_memory(const config::Config& config, int world_size, const RankPlace& place,
                          const InputFacts& facts) {
  Degrees degrees(config, world_size, place, {}, facts);
  if (config.train.recompute) return plan_settled(config, world_size, place, {}, facts).memory;
  return (config.memory.moves() ? degrees.some().front() : degrees.plan(degrees.lowest_that_fits())).memory;
}

int64_t agreed_recompute_degree(const config::Config& config, const RankPlace& place, const InputFacts& facts,
                                dist::Communicator& comm) {
  auto degree = double(Degrees(config, comm.world_size(), place, {}, facts).lowest_that_fits());
  comm.allreduce_max(&degree, 1);
  return int64_t(degree);
}

}  // namespace ditrain::plan
